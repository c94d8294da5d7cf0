import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import {
  copyIcon,
  LabIcon,
  refreshIcon
} from '@jupyterlab/ui-components';
import * as React from 'react';
import { askerName, cellName, goToCell } from '../cells';
import { clock } from '../format';
import { replyText } from '../kerneltexts';
import { doctorIcon, shieldIcon } from '../icons';
import type { KernelLink } from '../link';
import type { ISandboxSessions } from '../tokens';
import { ApprovalCard } from './approvalcard';
import {
  Grants,
  Inputs,
  Isolation,
  Limits,
  Provider,
  Selection,
  Summary,
  Tools,
  Withheld
} from './facts';
import { Outputs } from './files';
import { Runs, Timeline } from './history';

/** What the panel can ask the application to do. */
export interface IPanelActions {
  changeKernel: (notebook: NotebookPanel) => void;
  restartSandbox: () => void;
  doctor: () => void;
  copyFacts: () => void;
  takeBack: (link: KernelLink, grantId: string) => void;
  focusNotebook: (notebook: NotebookPanel) => void;
}

export interface IPanelProps {
  sessions: ISandboxSessions;
  trans: TranslationBundle;
  actions: IPanelActions;
}

/** A place without facts says why, and what to do. */
function Empty(props: {
  title: string;
  children: React.ReactNode;
  action?: { label: string; run: () => void };
}): JSX.Element {
  return (
    <div className="agently-Empty">
      <shieldIcon.react tag="div" className="agently-Empty-icon" />
      <h3>{props.title}</h3>
      {props.children}
      {props.action && (
        <button
          type="button"
          className="jp-mod-styled agently-button"
          onClick={props.action.run}
        >
          {props.action.label}
        </button>
      )}
    </div>
  );
}

function IconButton(props: {
  icon: LabIcon;
  label: string;
  onClick: () => void;
}): JSX.Element {
  return (
    <button
      type="button"
      className="agently-iconbutton"
      title={props.label}
      aria-label={props.label}
      onClick={props.onClick}
    >
      <props.icon.react tag="span" />
    </button>
  );
}

/** The words and the tone of the chip beside the notebook's name. */
export function statusOf(
  trans: TranslationBundle,
  link: KernelLink
): { word: string; tone: string } {
  switch (link.state) {
    case 'no-kernel':
      return { word: trans.__('No kernel'), tone: 'unknown' };
    case 'foreign':
      return { word: trans.__('Not sandboxed'), tone: 'unknown' };
    case 'linking':
      return { word: trans.__('Connecting'), tone: 'run' };
    case 'lost':
      return { word: trans.__('Connection lost'), tone: 'bad' };
    case 'refused':
      return { word: trans.__('Not compatible'), tone: 'bad' };
    case 'linked':
      break;
  }
  if (link.approvals.length > 0) {
    return { word: trans.__('Waiting for you'), tone: 'ask' };
  }
  const session = link.snapshot?.session.status;
  if (session === 'failed') {
    return { word: trans.__('Failed'), tone: 'bad' };
  }
  // A cell may run beside others: what the front end says of the kernel then is what its last request came to.
  const runs = link.snapshot?.executions.some(run => run.status === 'running' && !run.quiet);
  if (runs || session === 'busy' || link.context.kernelDisplayStatus === 'busy') {
    return { word: trans.__('Busy'), tone: 'run' };
  }
  return session === 'starting'
    ? { word: trans.__('Starting'), tone: 'run' }
    : { word: trans.__('Ready'), tone: 'ok' };
}

function Facts(props: IPanelProps & { notebook: NotebookPanel; link: KernelLink }): JSX.Element | null {
  const { trans, notebook, link, actions, sessions } = props;
  const snapshot = link.snapshot;
  if (!snapshot) {
    return null;
  }
  const name = (cell: string, count?: number | null) =>
    cellName(trans, notebook, cell, count);
  const go = (cell: string) => void goToCell(notebook, cell);
  const questions = link.approvals;
  const sandbox = snapshot.sandbox;
  return (
    <>
      {questions.length > 0 && (
        <ApprovalCard
          key={questions[0].request_id}
          approval={questions[0]}
          link={link}
          trans={trans}
          asker={askerName(trans, notebook, questions[0])}
          position={1}
          count={questions.length}
          onGoToCell={
            questions[0].cell_id ? () => go(questions[0].cell_id) : undefined
          }
          onLeave={() => actions.focusNotebook(notebook)}
        />
      )}
      <Summary trans={trans} snapshot={snapshot} />
      {sandbox && <Isolation trans={trans} sandbox={sandbox} />}
      <Outputs trans={trans} outputs={snapshot.outputs} link={link} />
      <Withheld
        trans={trans}
        withheld={snapshot.withheld}
        cellName={name}
        onGoTo={go}
      />
      <Inputs
        trans={trans}
        inputs={snapshot.inputs}
        onRevoke={id => actions.takeBack(link, id)}
      />
      <Grants
        trans={trans}
        grants={snapshot.grants}
        onRevoke={id => actions.takeBack(link, id)}
      />
      {sandbox && <Provider trans={trans} sandbox={sandbox} />}
      {snapshot.selection && (
        <Selection
          key={String(snapshot.session.status === 'failed')}
          trans={trans}
          selection={snapshot.selection}
          failed={snapshot.session.status === 'failed'}
        />
      )}
      {sandbox && <Limits trans={trans} sandbox={sandbox} />}
      {sandbox && <Tools trans={trans} sandbox={sandbox} />}
      <Runs
        trans={trans}
        executions={snapshot.executions}
        link={link}
        cellName={name}
        onGoTo={go}
      />
      <Timeline
        trans={trans}
        timeline={snapshot.timeline}
        limit={sessions.options.timelineLimit}
        cellName={name}
        onGoTo={go}
      />
    </>
  );
}

/** The side panel's content for the notebook in front. */
export function Panel(props: IPanelProps): JSX.Element {
  const { sessions, trans, actions } = props;
  const current = sessions.current;
  if (!current) {
    return (
      <Empty title={trans.__('No notebook in front')}>
        <p>
          {trans.__(
            'Open a notebook with the kernel “Agently (sandboxed)”. Here you then see what its cells may do, what they did, and you say yes or no when one asks for more.'
          )}
        </p>
      </Empty>
    );
  }
  const { notebook, link } = current;
  const chip = statusOf(trans, link);
  const change = {
    label: trans.__('Change kernel'),
    run: () => actions.changeKernel(notebook)
  };
  let body: JSX.Element | null = null;
  if (link.state === 'no-kernel') {
    body = (
      <Empty title={trans.__('This notebook has no kernel')} action={change}>
        <p>
          {trans.__('Choose “Agently (sandboxed)” to run its cells in a sandbox.')}
        </p>
      </Empty>
    );
  } else if (link.state === 'foreign') {
    body = (
      <Empty title={trans.__('Not a sandboxed kernel')} action={change}>
        <p>
          {trans.__(
            'Cells of this notebook run as you: variables, files and the network are your own. Choose “Agently (sandboxed)” to run them apart from your computer.'
          )}
        </p>
      </Empty>
    );
  } else if (link.state === 'refused') {
    body = (
      <Empty title={trans.__('Panel and kernel do not fit together')}>
        <p>{replyText(trans, link.message)}</p>
      </Empty>
    );
  } else if (!link.snapshot) {
    body = (
      <Empty
        title={
          link.state === 'lost'
            ? trans.__('The kernel does not answer')
            : trans.__('Connecting to the kernel')
        }
      >
        <p>
          {link.state === 'lost'
            ? trans.__('Trying again by itself. If it lasts, restart the kernel.')
            : trans.__('This takes a moment.')}
        </p>
      </Empty>
    );
  }
  return (
    <>
      <div className="agently-Header">
        <h2 title={notebook.context.path}>{notebook.title.label}</h2>
        <span className={`agently-chip agently-tone-${chip.tone}`}>
          {chip.word}
        </span>
      </div>
      {link.state === 'lost' && link.snapshot && (
        <p className="agently-problem" role="status">
          {trans.__(
            'No connection since %1: what you see may be old.',
            clock(link.lostAt)
          )}
        </p>
      )}
      {body ?? (
        <>
          <div
            className="agently-Actions"
            role="toolbar"
            aria-label={trans.__('Sandbox actions')}
          >
            <IconButton
              icon={refreshIcon}
              label={trans.__('Restart sandbox')}
              onClick={actions.restartSandbox}
            />
            <IconButton
              icon={doctorIcon}
              label={trans.__('Doctor: examine every provider')}
              onClick={actions.doctor}
            />
            <IconButton
              icon={copyIcon}
              label={trans.__('Copy facts as JSON')}
              onClick={actions.copyFacts}
            />
          </div>
          <Facts key={link.context.session?.id} {...props} notebook={notebook} link={link} />
        </>
      )}
    </>
  );
}
