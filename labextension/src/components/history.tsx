import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { clock, seconds, shortDigest } from '../format';
import { endText, replyText } from '../kerneltexts';
import type { KernelLink } from '../link';
import type { ExecutionView, TimelineEntry } from '../protocol';
import * as texts from '../texts';
import { Mark, Section } from './section';

const SHOWN_RUNS = 12;

interface ICells {
  cellName: (cell: string, count?: number | null) => string;
  onGoTo: (cell: string) => void;
}

function Run(
  props: ICells & {
    run: ExecutionView;
    link: KernelLink;
    trans: TranslationBundle;
  }
): JSX.Element {
  const { run, link, trans } = props;
  const [text, setText] = React.useState<string | null>(null);
  const said = texts.executionStatus(trans, run.status);
  const show = async () => {
    if (text !== null) {
      setText(null);
      return;
    }
    try {
      const reply = await link.request({
        action: 'read_execution',
        execution_id: run.execution_id
      });
      setText(
        reply.execution
          ? reply.execution.text || trans.__('(it printed nothing)')
          : replyText(trans, reply.message)
      );
    } catch {
      setText(trans.__('The kernel did not answer.'));
    }
  };
  return (
    <li data-run={run.execution_id}>
      <div className="agently-row">
        <Mark tone={said.tone} mark={said.mark} />
        <button
          type="button"
          className="agently-link agently-grow"
          onClick={() => props.onGoTo(run.cell_id)}
        >
          {props.cellName(run.cell_id, run.count)}
        </button>
        <span className={`agently-word agently-tone-${said.tone}`}>
          {said.word}
        </span>
        {run.status !== 'running' && (
          <span className="agently-small agently-number">
            {seconds(run.seconds)}
          </span>
        )}
        <button
          type="button"
          className="agently-link"
          aria-expanded={text !== null}
          onClick={() => void show()}
        >
          {text === null ? trans.__('Text') : trans.__('Hide')}
        </button>
      </div>
      {run.message && (
        <div className="agently-small">{endText(trans, run.message)}</div>
      )}
      {text !== null && (
        <div
          className="agently-Preview"
          tabIndex={0}
          role="region"
          aria-label={trans.__('What the cell printed')}
        >
          <pre>{text}</pre>
          {run.bundle_digest && (
            <p className="agently-small" title={run.bundle_digest}>
              {trans.__('code sha256 %1', shortDigest(run.bundle_digest))}
            </p>
          )}
        </div>
      )}
    </li>
  );
}

/** The last executions, with what they printed: also for a page that was reloaded meanwhile. */
export function Runs(
  props: ICells & {
    executions: ExecutionView[];
    link: KernelLink;
    trans: TranslationBundle;
  }
): JSX.Element | null {
  const runs = props.executions.filter(run => !run.quiet);
  if (runs.length === 0) {
    return null;
  }
  return (
    <Section name="runs" title={props.trans.__('Runs')} count={runs.length}>
      <ul className="agently-list">
        {runs
          .slice(-SHOWN_RUNS)
          .reverse()
          .map(run => (
            <Run key={run.execution_id} {...props} run={run} />
          ))}
      </ul>
    </Section>
  );
}

/** Everything that happened, newest first. */
export function Timeline(
  props: ICells & {
    timeline: TimelineEntry[];
    limit: number;
    trans: TranslationBundle;
  }
): JSX.Element {
  const { timeline, limit, trans } = props;
  const [problems, setProblems] = React.useState(false);
  const shown = timeline
    .filter(entry => !problems || entry.problem)
    .slice(-limit)
    .reverse();
  return (
    <Section
      name="timeline"
      title={trans.__('Timeline')}
      count={timeline.length}
      open={false}
    >
      <label className="agently-check">
        <input
          type="checkbox"
          checked={problems}
          onChange={event => setProblems(event.target.checked)}
        />{' '}
        {trans.__('Only problems')}
      </label>
      {shown.length === 0 && (
        <p className="agently-small">{trans.__('Nothing yet.')}</p>
      )}
      <ol className="agently-timeline">
        {shown.map(entry => (
          <li key={entry.number}>
            <time className="agently-small">{clock(entry.at)}</time>
            <span>
              {entry.problem && <Mark tone="bad" mark="!" />}{' '}
              {texts.eventName(trans, entry)}
              {entry.kind === 'resource' && entry.subject && (
                <> · {entry.subject}</>
              )}
              {entry.kind === 'approval' && (
                <> · {texts.gateName(trans, entry.subject)}</>
              )}
              {entry.cell_id && (
                <>
                  {' · '}
                  <button
                    type="button"
                    className="agently-link"
                    onClick={() => props.onGoTo(entry.cell_id)}
                  >
                    {props.cellName(entry.cell_id)}
                  </button>
                </>
              )}
              {entry.text && (
                <span className="agently-small">
                  {' '}
                  {endText(trans, entry.text)}
                </span>
              )}
            </span>
          </li>
        ))}
      </ol>
    </Section>
  );
}
