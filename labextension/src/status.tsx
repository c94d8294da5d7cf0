import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import * as React from 'react';
import {
  shieldAskIcon,
  shieldIcon,
  shieldOkIcon,
  shieldWarnIcon
} from './icons';
import type { KernelLink } from './link';
import * as texts from './texts';
import type { ISandboxSessions } from './tokens';

interface IShield {
  icon: typeof shieldIcon;
  text: string;
  tone: string;
  title: string;
}

/** What the shield says of one link; null hides it. */
export function shieldOf(
  trans: TranslationBundle,
  link: KernelLink | undefined,
  waiting: number,
  showForeign: boolean
): IShield | null {
  if (waiting > 0) {
    return {
      icon: shieldAskIcon,
      tone: 'ask',
      text: trans._n('%1 approval waiting', '%1 approvals waiting', waiting),
      title: trans.__('A cell asks for something. Click to see what.')
    };
  }
  if (!link || link.state === 'no-kernel') {
    return null;
  }
  if (link.state === 'foreign') {
    return showForeign
      ? {
          icon: shieldIcon,
          tone: 'unknown',
          text: trans.__('not sandboxed'),
          title: trans.__('Cells of this notebook run as you.')
        }
      : null;
  }
  const sandbox = link.snapshot?.sandbox;
  if (link.state !== 'linked' || !sandbox) {
    const failed =
      link.state === 'lost' ||
      link.state === 'refused' ||
      link.snapshot?.session.status === 'failed';
    return {
      icon: failed ? shieldWarnIcon : shieldIcon,
      tone: failed ? 'bad' : 'unknown',
      text: failed ? trans.__('sandbox: problem') : trans.__('no sandbox yet'),
      title: trans.__('Click for the sandbox panel.')
    };
  }
  const axes = sandbox.axes
    .map(
      axis =>
        `${texts.axisName(trans, axis.axis)}: ${texts.verdict(trans, axis.value).word}`
    )
    .join('\n');
  if (sandbox.safety_class === 'trusted_local') {
    return {
      icon: shieldWarnIcon,
      tone: 'bad',
      text: trans.__('no isolation'),
      title: axes
    };
  }
  const good = texts.score(sandbox);
  const unfiltered = link.snapshot?.policy.output_policy === 'trusted';
  const all = good === sandbox.axes.length && !unfiltered;
  return {
    icon: all ? shieldOkIcon : shieldWarnIcon,
    tone: unfiltered ? 'bad' : all ? 'ok' : 'unknown',
    text: `${sandbox.provider_id} ${good}/${sandbox.axes.length}`,
    title: axes
  };
}

/** The shield of the status bar, and its twin in a notebook's toolbar. */
export class ShieldWidget extends ReactWidget {
  private _sessions: ISandboxSessions;
  private _trans: TranslationBundle;
  private _open: () => void;
  private _link: (() => KernelLink | undefined) | null;

  /** Without *link* the shield follows the notebook in front and counts the questions of all. */
  constructor(
    sessions: ISandboxSessions,
    trans: TranslationBundle,
    open: () => void,
    link: (() => KernelLink | undefined) | null = null
  ) {
    super();
    this._sessions = sessions;
    this._trans = trans;
    this._open = open;
    this._link = link;
    this.addClass('agently-Shield');
  }

  render(): JSX.Element {
    return (
      <UseSignal signal={this._sessions.changed}>
        {() => this._shield()}
      </UseSignal>
    );
  }

  private _shield(): JSX.Element | null {
    const link = this._link ? this._link() : this._sessions.current?.link;
    const waiting = this._link
      ? link?.approvals.length ?? 0
      : this._sessions.waiting().length;
    const shield = shieldOf(
      this._trans,
      link,
      waiting,
      this._sessions.options.showForeignKernels
    );
    if (!shield) {
      return null;
    }
    return (
      <button
        type="button"
        className={`agently-Shield-button agently-tone-${shield.tone}`}
        title={shield.title}
        onClick={this._open}
      >
        <shield.icon.react tag="span" className="agently-Shield-icon" />
        <span>{shield.text}</span>
      </button>
    );
  }
}
