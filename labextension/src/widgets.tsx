import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import { Message, MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import * as React from 'react';
import { askerName, goToCell } from './cells';
import { ApprovalCard } from './components/approvalcard';
import { IPanelActions, Panel } from './components/panel';
import { shieldIcon } from './icons';
import type { KernelLink } from './link';
import type { ISandboxSessions } from './tokens';

export const PANEL_ID = 'agently-panel';

/** The side panel. */
export class PanelWidget extends ReactWidget {
  private _sessions: ISandboxSessions;
  private _trans: TranslationBundle;
  private _actions: IPanelActions;

  constructor(
    sessions: ISandboxSessions,
    trans: TranslationBundle,
    actions: IPanelActions
  ) {
    super();
    this._sessions = sessions;
    this._trans = trans;
    this._actions = actions;
    this.id = PANEL_ID;
    this.addClass('agently-Panel');
    this.title.icon = shieldIcon;
    this.title.caption = trans.__('Sandbox');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Sandbox'));
  }

  render(): JSX.Element {
    return (
      <UseSignal signal={this._sessions.changed}>
        {() => (
          <Panel
            sessions={this._sessions}
            trans={this._trans}
            actions={this._actions}
          />
        )}
      </UseSignal>
    );
  }

  protected onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this._sessions.panelVisible = true;
  }

  protected onAfterHide(msg: Message): void {
    super.onAfterHide(msg);
    this._sessions.panelVisible = false;
  }

  protected onBeforeDetach(msg: Message): void {
    this._sessions.panelVisible = false;
    super.onBeforeDetach(msg);
  }
}

/**
 * The question above a notebook's cells, where the side panel does not show it already.
 *
 * It lives in the notebook's content header, which no output can cover. A Lumino layout knows only CSS minimum heights,
 * so the height of what React drew is written there.
 */
export class BannerWidget extends ReactWidget {
  private _sessions: ISandboxSessions;
  private _trans: TranslationBundle;
  private _notebook: NotebookPanel;
  private _link: KernelLink;
  private _observer: ResizeObserver | null = null;

  constructor(
    sessions: ISandboxSessions,
    trans: TranslationBundle,
    notebook: NotebookPanel,
    link: KernelLink
  ) {
    super();
    this._sessions = sessions;
    this._trans = trans;
    this._notebook = notebook;
    this._link = link;
    this.addClass('agently-Banner');
  }

  /** Show or hide the banner as the questions and the panel come and go. */
  follow(): void {
    const shown = this._isNeeded();
    if (shown !== this.isVisible) {
      this.setHidden(!shown);
      this._fit();
    }
  }

  render(): JSX.Element {
    return (
      <UseSignal signal={this._sessions.changed}>
        {() => <div className="agently-Banner-inner">{this._card()}</div>}
      </UseSignal>
    );
  }

  protected onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this._observer = new ResizeObserver(() => this._fit());
    this._observer.observe(this.node);
    this._watch();
  }

  protected onBeforeDetach(msg: Message): void {
    this._observer?.disconnect();
    super.onBeforeDetach(msg);
  }

  protected onUpdateRequest(msg: Message): void {
    super.onUpdateRequest(msg);
    void this.renderPromise?.then(() => this._watch());
  }

  private _isNeeded(): boolean {
    if (this._link.approvals.length === 0) {
      return false;
    }
    const front = this._sessions.current?.notebook === this._notebook;
    return !(front && this._sessions.panelVisible);
  }

  private _card(): JSX.Element | null {
    if (!this._isNeeded()) {
      return null;
    }
    const questions = this._link.approvals;
    const approval = questions[0];
    return (
      <ApprovalCard
        key={approval.request_id}
        approval={approval}
        link={this._link}
        trans={this._trans}
        asker={askerName(this._trans, this._notebook, approval)}
        position={1}
        count={questions.length}
        onGoToCell={
          approval.cell_id
            ? () => void goToCell(this._notebook, approval.cell_id)
            : undefined
        }
        onLeave={() => this._notebook.content.activate()}
      />
    );
  }

  private _watch(): void {
    const inner = this.node.querySelector('.agently-Banner-inner');
    if (inner) {
      this._observer?.observe(inner);
    }
  }

  private _fit(): void {
    const inner = this.node.querySelector('.agently-Banner-inner');
    if (!this.isHidden && this.node.clientWidth === 0) {
      return; // not laid out yet: a word a line would be as high as the window and push what lies beside it away
    }
    const height = this.isHidden || !inner ? 0 : inner.clientHeight;
    const wanted = `${height}px`;
    if (this.node.style.minHeight !== wanted) {
      this.node.style.minHeight = wanted;
      for (let up = this.parent; up; up = up.parent) {
        up.fit();
        if (up === this._notebook) {
          break;
        }
      }
      if (this.parent) {
        MessageLoop.postMessage(this.parent, Widget.Msg.FitRequest);
      }
    }
  }
}
