import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { clock, shortDigest, bytes } from '../format';
import type {
  AxisView,
  GrantView,
  InputView,
  PanelSnapshot,
  SandboxView,
  SelectionView,
  WithheldView
} from '../protocol';
import * as words from '../kerneltexts';
import * as texts from '../texts';
import { Mark, Section } from './section';

type T = { trans: TranslationBundle };

/** The state of the sandbox in two lines, for somebody who sees this for the first time. */
export function Summary(props: T & { snapshot: PanelSnapshot }): JSX.Element {
  const { trans, snapshot } = props;
  const { sandbox, session, policy } = snapshot;
  let tone = 'unknown';
  let title = trans.__('No sandbox yet');
  let text = trans.__('It starts by itself with the first cell that you run.');
  if (session.status === 'failed') {
    tone = 'bad';
    title = trans.__('No sandbox could be started');
    text = words.endText(trans, session.message);
  } else if (session.status === 'starting') {
    title = trans.__('The sandbox is starting');
    text = trans.__('Cells wait until it is ready.');
  } else if (sandbox && sandbox.safety_class === 'trusted_local') {
    tone = 'bad';
    title = trans.__('NOT isolated');
    text = trans.__('Cells can do everything that you can do on this machine.');
  } else if (sandbox) {
    const good = texts.score(sandbox);
    tone = good === sandbox.axes.length ? 'ok' : 'unknown';
    title =
      good === sandbox.axes.length
        ? trans.__('Isolated by %1', sandbox.provider_id)
        : trans.__('Partly isolated by %1', sandbox.provider_id);
    text =
      sandbox.network === 'none' && sandbox.network_axis.value === true
        ? trans.__(
            'Cells see only what you granted, and the network is off. All of this was observed, not assumed.'
          )
        : trans.__(
            'Cells see only what you granted. Look below for what was observed, and for the network.'
          );
    if (good !== sandbox.axes.length) {
      const missing = sandbox.axes
        .filter(axis => axis.value !== true)
        .map(axis => texts.axisName(trans, axis.axis));
      text = trans.__(
        'Not observed to hold: %1. Look below for what was seen.',
        missing.join(' · ')
      );
    }
  }
  return (
    <div className={`agently-Summary agently-tone-${tone}`}>
      <div className="agently-Summary-title">
        <Mark
          tone={tone}
          mark={tone === 'ok' ? '✓' : tone === 'bad' ? '✗' : '?'}
        />
        <strong>{title}</strong>
      </div>
      <p>{text}</p>
      {policy.output_policy === 'trusted' && (
        <p className="agently-problem">
          {trans.__(
            'Outputs are shown unfiltered (output policy: trusted): what a cell shows can act in this page as you.'
          )}
        </p>
      )}
      {policy.wishes
        .map(wish => texts.wishText(trans, wish))
        .filter(said => said)
        .map(said => (
          <p key={said} className="agently-note">
            {said}
          </p>
        ))}
      {snapshot.selection?.preference_fallback && (
        <p className="agently-problem">
          {trans.__(
            'The isolation that you preferred could not be had; this is the fallback that your configuration allows.'
          )}
        </p>
      )}
    </div>
  );
}

function Axis(props: T & { axis: AxisView; name?: string }): JSX.Element {
  const { trans, axis } = props;
  const said = texts.verdict(trans, axis.value);
  const latest = Math.max(0, ...axis.evidence.map(item => item.observed_at));
  return (
    <details className="agently-Axis" data-axis={axis.axis}>
      <summary>
        <Mark tone={said.tone} mark={said.mark} />
        <span className="agently-grow">{props.name ?? texts.axisName(trans, axis.axis)}</span>
        <span className={`agently-word agently-tone-${said.tone}`}>
          {said.word}
        </span>
      </summary>
      {axis.evidence.length === 0 && (
        <p className="agently-small">
          {trans.__('There is no observation of this.')}
        </p>
      )}
      <ul className="agently-evidence">
        {axis.evidence.map((item, index) => {
          const each = texts.verdict(trans, item.value);
          return (
            <li key={index}>
              <Mark tone={each.tone} mark={each.mark} />
              <span>
                {words.checkText(trans, item.check)}
                {item.detail && <> — {words.detailText(trans, item.detail)}</>}{' '}
                <span className="agently-small">
                  {item.source === 'outside'
                    ? trans.__('(seen from outside)')
                    : trans.__('(tried from inside)')}
                </span>
              </span>
            </li>
          );
        })}
      </ul>
      {latest > 0 && (
        <p className="agently-small">
          {trans.__('observed %1', clock(latest))}
        </p>
      )}
    </details>
  );
}

export function Isolation(props: T & { sandbox: SandboxView }): JSX.Element {
  const { trans, sandbox } = props;
  return (
    <Section
      name="isolation"
      title={trans.__('Isolation')}
      count={`${texts.score(sandbox)}/${sandbox.axes.length}`}
      spoken={trans.__(
        '%1 of %2 hold',
        texts.score(sandbox),
        sandbox.axes.length
      )}
    >
      {sandbox.axes.map(axis => (
        <Axis key={axis.axis} trans={trans} axis={axis} />
      ))}
      <div className="agently-beside">
        <Axis
          trans={trans}
          axis={sandbox.network_axis}
          name={
            sandbox.network_hosts.length > 0
              ? trans.__(
                  'Network blocked but for %1',
                  sandbox.network_hosts.join(', ')
                )
              : undefined
          }
        />
      </div>
      <p className="agently-small">
        {trans.__(
          'Observed %1 on this very sandbox. Open a line for the evidence.',
          clock(sandbox.observed_at)
        )}
      </p>
    </Section>
  );
}

export function Provider(props: T & { sandbox: SandboxView }): JSX.Element {
  const { trans, sandbox } = props;
  return (
    <Section name="provider" title={trans.__('Provider')} count={sandbox.provider_id} open={false}>
      <dl className="agently-facts">
        <dt>{trans.__('Safety class')}</dt>
        <dd>{texts.safetyClass(trans, sandbox.safety_class)}</dd>
        <dt>{trans.__('Network')}</dt>
        <dd>{texts.network(trans, sandbox.network, sandbox.network_hosts)}</dd>
        {sandbox.mechanism.map(fact => (
          <React.Fragment key={fact.name}>
            <dt>{words.mechanismName(trans, fact.name, fact.name.replace(/_/g, ' '))}</dt>
            <dd>{words.valueText(trans, fact.value)}</dd>
          </React.Fragment>
        ))}
      </dl>
    </Section>
  );
}

export function Limits(props: T & { sandbox: SandboxView }): JSX.Element | null {
  const { trans, sandbox } = props;
  if (sandbox.limits.length === 0) {
    return null;
  }
  return (
    <Section name="limits" title={trans.__('Limits')} count={sandbox.limits.length} open={false}>
      <table className="agently-table">
        <thead>
          <tr>
            <th scope="col">{trans.__('What')}</th>
            <th scope="col">{trans.__('Limit')}</th>
            <th scope="col">{trans.__('Held by')}</th>
          </tr>
        </thead>
        <tbody>
          {sandbox.limits.map(limit => {
            const said = texts.verdict(trans, limit.observed);
            return (
              <tr key={limit.name}>
                <td>{texts.limitName(trans, limit.name)}</td>
                <td>{texts.limitValue(trans, limit)}</td>
                <td>
                  {limit.limit === null ? (
                    '—'
                  ) : (
                    <>
                      {words.limitText(trans, limit.mechanism)}{' '}
                      <span title={said.word}>
                        <Mark tone={said.tone} mark={said.mark} />
                        <span className="agently-hidden">{said.word}</span>
                      </span>
                    </>
                  )}
                  {limit.detail && <small> {words.limitText(trans, limit.detail)}</small>}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </Section>
  );
}

export function Tools(props: T & { sandbox: SandboxView }): JSX.Element | null {
  const { trans, sandbox } = props;
  if (sandbox.toolchains.length === 0) {
    return null;
  }
  return (
    <Section name="tools" title={trans.__('Tools inside')} count={sandbox.toolchains.filter(t => t.available).length} open={false}>
      <dl className="agently-facts">
        {sandbox.toolchains.map(tool => (
          <React.Fragment key={tool.tool}>
            <dt>{tool.tool}</dt>
            <dd>
              {tool.available
                ? tool.version ?? trans.__('there')
                : trans.__('not there')}
            </dd>
          </React.Fragment>
        ))}
      </dl>
    </Section>
  );
}

export function Selection(props: T & { selection: SelectionView; failed: boolean }): JSX.Element {
  const { trans, selection } = props;
  const rows = [
    ...selection.skipped.map(item => ({ at: item.index, item, taken: '' })),
    ...(selection.provider_id !== null
      ? [{ at: selection.index ?? 0, item: null, taken: selection.provider_id }]
      : [])
  ].sort((a, b) => a.at - b.at);
  return (
    <Section
      name="selection"
      title={trans.__('Why this provider')}
      count={rows.length}
      open={props.failed || selection.skipped.length > 0}
    >
      <ol className="agently-list">
        {rows.map(row => (
          <li key={`${row.at}-${row.taken || row.item?.provider_id}`}>
            <strong>{row.taken || row.item?.provider_id}</strong>{' '}
            {row.item ? (
              <>
                <span className="agently-word agently-tone-unknown">
                  {trans.__('skipped')}: {texts.skipCode(trans, row.item.code)}
                </span>
                <div className="agently-small">
                  {words.skipText(trans, row.item.message)}
                </div>
                {row.item.remedy && (
                  <div className="agently-small">
                    <em>{trans.__('Remedy:')}</em>{' '}
                    {words.remedyText(trans, row.item.remedy)}
                  </div>
                )}
              </>
            ) : (
              <span className="agently-word agently-tone-ok">
                {trans.__('selected')}
              </span>
            )}
          </li>
        ))}
      </ol>
      <p className="agently-small">
        {selection.isolation === 'required'
          ? trans.__('Your configuration requires isolation: nothing weaker is ever taken.')
          : selection.isolation === 'preferred'
            ? trans.__('Your configuration prefers isolation and allows a recorded fallback.')
            : trans.__('Your configuration does not ask for isolation.')}
      </p>
    </Section>
  );
}

export function Inputs(
  props: T & { inputs: InputView[]; onRevoke: (id: string) => void }
): JSX.Element | null {
  const { trans, inputs } = props;
  if (inputs.length === 0) {
    return null;
  }
  return (
    <Section name="inputs" title={trans.__('Given to cells')} count={inputs.length}>
      <ul className="agently-list">
        {inputs.map(input => (
          <li key={input.name} className="agently-row">
            <span className="agently-grow">
              <span className="agently-path">{input.name}</span>{' '}
              <span className="agently-small">
              {input.mode === 'snapshot'
                ? trans.__('a copy of %1', input.host_path)
                : input.mode === 'read_only'
                  ? trans.__('read-only: %1', input.host_path)
                  : trans.__('may be changed: %1', input.host_path)}
              {input.size !== null && <> · {bytes(input.size)}</>}
              {input.sha256 && <> · sha256 {shortDigest(input.sha256)}</>}
              </span>
            </span>
            {input.grant_id && (
              <button
                type="button"
                className="agently-link"
                aria-label={trans.__('Take back %1', input.name)}
                onClick={() => props.onRevoke(input.grant_id ?? '')}
              >
                {trans.__('Take back')}
              </button>
            )}
          </li>
        ))}
      </ul>
    </Section>
  );
}

export function Grants(
  props: T & { grants: GrantView[]; onRevoke: (id: string) => void }
): JSX.Element | null {
  const { trans, grants } = props;
  if (grants.length === 0) {
    return null;
  }
  return (
    <Section name="grants" title={trans.__('Allowed in this session')} count={grants.length}>
      <ul className="agently-list">
        {grants.map(grant => (
          <li key={grant.grant_id} className="agently-row">
            <span className="agently-grow">
              {texts.gateName(trans, grant.gate)}:{' '}
              <span className="agently-path">{grant.subject}</span>
            </span>
            <button
              type="button"
              className="agently-link"
              onClick={() => props.onRevoke(grant.grant_id)}
            >
              {trans.__('Take back')}
            </button>
          </li>
        ))}
      </ul>
    </Section>
  );
}

export function Withheld(
  props: T & {
    withheld: WithheldView[];
    cellName: (cell: string) => string;
    onGoTo: (cell: string) => void;
  }
): JSX.Element | null {
  const { trans, withheld } = props;
  if (withheld.length === 0) {
    return null;
  }
  return (
    <Section name="withheld" title={trans.__('Withheld outputs')} count={withheld.length}>
      <ul className="agently-list">
        {[...withheld].reverse().map((item, index) => (
          <li key={index}>
            <button
              type="button"
              className="agently-link"
              onClick={() => props.onGoTo(item.cell_id)}
            >
              {props.cellName(item.cell_id)}
            </button>{' '}
            <span className="agently-path">{item.mime || item.kind}</span>
            <div className="agently-small">
              {words.reasonText(trans, item.reason)}
            </div>
            {item.how_to_allow && (
              <div className="agently-small">
                {words.reasonText(trans, item.how_to_allow)}
              </div>
            )}
          </li>
        ))}
      </ul>
    </Section>
  );
}
