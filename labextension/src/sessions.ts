import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ISignal, Signal } from '@lumino/signaling';
import { IWish, KernelLink } from './link';
import type { IPanelOptions, ISandboxSessions, IWaiting } from './tokens';

export const DEFAULT_OPTIONS: IPanelOptions = {
  notifyInBackground: 'toast',
  openPanelOnApproval: false,
  cellBadges: 'all',
  showForeignKernels: false,
  timelineLimit: 200,
  panelSide: 'right',
  isolation: 'configured',
  approvalTimeout: 0
};

/** What of the options a kernel is asked for. */
function wishOf(options: IPanelOptions): IWish {
  return {
    isolation: options.isolation === 'configured' ? null : options.isolation,
    approval_timeout_seconds:
      options.approvalTimeout > 0 ? Math.max(MIN_TIMEOUT, options.approvalTimeout) : null
  };
}

const MIN_TIMEOUT = 5;

type Entry = { notebook: NotebookPanel; link: KernelLink };

/** Follows the notebook tracker: one link a notebook, disposed with it. */
export class SandboxSessions implements ISandboxSessions {
  private _tracker: INotebookTracker;
  private _links = new Map<NotebookPanel, KernelLink>();
  private _changed = new Signal<ISandboxSessions, void>(this);
  private _opened = new Signal<ISandboxSessions, Entry>(this);
  private _panelVisible = false;
  private _options = DEFAULT_OPTIONS;
  private _resting = false;
  private _missed = false;

  constructor(tracker: INotebookTracker) {
    this._tracker = tracker;
    tracker.widgetAdded.connect((_, notebook) => this._add(notebook));
    tracker.currentChanged.connect(() => this._emit());
    tracker.forEach(notebook => this._add(notebook));
  }

  get changed(): ISignal<ISandboxSessions, void> {
    return this._changed;
  }

  get opened(): ISignal<ISandboxSessions, Entry> {
    return this._opened;
  }

  get current(): Entry | null {
    const notebook = this._tracker.currentWidget;
    const link = notebook ? this._links.get(notebook) : undefined;
    return notebook && link ? { notebook, link } : null;
  }

  get panelVisible(): boolean {
    return this._panelVisible;
  }

  set panelVisible(value: boolean) {
    if (value !== this._panelVisible) {
      this._panelVisible = value;
      this._emit();
    }
  }

  get options(): IPanelOptions {
    return this._options;
  }

  set options(value: IPanelOptions) {
    this._options = value;
    this._links.forEach(link => link.setWish(wishOf(value)));
    this._emit();
  }

  link(notebook: NotebookPanel): KernelLink | undefined {
    return this._links.get(notebook);
  }

  all(): Entry[] {
    return [...this._links].map(([notebook, link]) => ({ notebook, link }));
  }

  waiting(): IWaiting[] {
    const front = this._tracker.currentWidget;
    const seen = new Set<string>();
    return this.all()
      .sort((a, b) => Number(b.notebook === front) - Number(a.notebook === front))
      .flatMap(({ notebook, link }) =>
        link.approvals.map(approval => ({ notebook, link, approval }))
      )
      .filter(({ approval }) => {
        // Two notebooks may share one kernel; its questions are then one.
        const fresh = !seen.has(approval.request_id);
        seen.add(approval.request_id);
        return fresh;
      });
  }

  private _add(notebook: NotebookPanel): void {
    if (this._links.has(notebook)) {
      return;
    }
    const link = new KernelLink(notebook.sessionContext);
    this._links.set(notebook, link);
    link.setWish(wishOf(this._options));
    link.changed.connect(() => this._emit());
    notebook.disposed.connect(() => {
      this._links.delete(notebook);
      link.dispose();
      this._emit();
    });
    this._opened.emit({ notebook, link });
    this._emit();
  }

  /** Tell listeners at once, then once a frame at most, so that a burst of events costs one repaint a frame. */
  private _emit(): void {
    if (this._resting) {
      this._missed = true;
      return;
    }
    this._resting = true;
    this._missed = false;
    window.setTimeout(() => {
      this._resting = false;
      if (this._missed) {
        this._emit();
      }
    }, 16);
    queueMicrotask(() => this._changed.emit());
  }
}
