import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { wishText } from './texts';
import type { ISandboxSessions, IWaiting } from './tokens';

/**
 * Says that a question waits: aloud for screen readers, and by a notification when its notebook is not in front.
 *
 * A notification never carries an allow button, only the way to the question.
 */
export class Notices {
  private _sessions: ISandboxSessions;
  private _trans: TranslationBundle;
  private _review: (item: IWaiting) => void;
  private _arrived: (item: IWaiting) => void;
  private _known = new Set<string>();
  private _announced = new Set<string>();
  private _warned = new Set<string>();
  private _shown = new Map<string, string>();
  private _region: HTMLElement;
  private _refusals: Set<string> | null = null;

  constructor(
    sessions: ISandboxSessions,
    trans: TranslationBundle,
    review: (item: IWaiting) => void,
    arrived: (item: IWaiting) => void
  ) {
    this._sessions = sessions;
    this._trans = trans;
    this._review = review;
    this._arrived = arrived;
    this._region = document.createElement('div');
    this._region.className = 'agently-hidden';
    this._region.setAttribute('aria-live', 'polite');
    document.body.appendChild(this._region);
    sessions.changed.connect(() => this._update());
    window.setInterval(() => this._warn(), 1000);
  }

  /** The user changed a setting: say once what of it a kernel refuses. The panel says it all the time. */
  tellRefusals(): void {
    this._refusals ??= new Set();
  }

  private _tellRefusals(): void {
    const told = this._refusals;
    if (!told) {
      return;
    }
    const now = new Set(
      this._sessions
        .all()
        .flatMap(({ link }) => link.snapshot?.policy.wishes ?? [])
        .map(wish => wishText(this._trans, wish))
        .filter(text => text)
    );
    now.forEach(text => {
      if (!told.has(text)) {
        Notification.warning(text, { autoClose: 8000 });
      }
    });
    this._refusals = now;
  }

  private _update(): void {
    this._tellRefusals();
    const waiting = this._sessions.waiting();
    const open = new Set(waiting.map(item => item.approval.request_id));
    for (const [request, id] of this._shown) {
      if (!open.has(request)) {
        Notification.dismiss(id);
        this._shown.delete(request);
      }
    }
    for (const item of waiting) {
      const { request_id, title } = item.approval;
      const front = this._sessions.current?.notebook === item.notebook;
      if (front && this._shown.has(request_id)) {
        Notification.dismiss(this._shown.get(request_id));
        this._shown.delete(request_id);
      }
      if (!this._known.has(request_id)) {
        this._say(
          this._trans.__(
            'A question waits in %1: %2. Press Alt S to go to it.',
            item.notebook.title.label,
            this._trans.__(title)
          )
        );
        this._arrived(item);
      }
      const background = !front || document.visibilityState === 'hidden';
      if (
        background &&
        !this._announced.has(request_id) &&
        this._sessions.options.notifyInBackground === 'toast'
      ) {
        this._announced.add(request_id);
        this._shown.set(request_id, this._notify(item));
      }
    }
    this._known = open;
    for (const past of [this._warned, this._announced]) {
      past.forEach(id => open.has(id) || past.delete(id));
    }
  }

  private _notify(item: IWaiting): string {
    return Notification.emit(
      this._trans.__(
        '%1 asks: %2',
        item.notebook.title.label,
        this._trans.__(item.approval.title)
      ),
      'warning',
      {
        autoClose: false,
        actions: [
          {
            label: this._trans.__('Review'),
            callback: () => this._review(item)
          }
        ]
      }
    );
  }

  private _warn(): void {
    for (const { link, approval } of this._sessions.waiting()) {
      const left = link.remaining(approval);
      if (left !== null && left < 20 && !this._warned.has(approval.request_id)) {
        this._warned.add(approval.request_id);
        this._say(this._trans.__('20 seconds left to answer the question.'));
      }
    }
  }

  private _say(text: string): void {
    this._region.textContent = text;
  }
}
