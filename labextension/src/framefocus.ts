import { SELECTOR } from './frames';

/** How long after the Tab key a frame may have the focus by it (milliseconds). */
const TAB_COUNTS = 1000;

/**
 * Lets a frame of output have the focus only when a person gave it: with the pointer, or with the Tab key.
 *
 * A script in a frame can take the focus at any time, and would then get what a person types elsewhere. A frame that
 * does so loses it again and is put to sleep until it is clicked; one that does it even then is stopped. Somebody who has
 * pressed a key since the pointer came over a frame was typing, not pointing.
 */
export class FrameFocus {
  private _stopped: string;
  private _root: Document;
  private _last: HTMLElement | null = null;
  private _pointed: EventTarget | null = null;
  private _tabbed = -TAB_COUNTS;

  /** *stopped* is shown in place of an output that would not leave the focus alone. */
  constructor(
    stopped: string,
    root: Document = document,
    view: Window = window
  ) {
    this._stopped = stopped;
    this._root = root;
    const capture = true;
    root.addEventListener('focusin', event => {
      const target = event.target as HTMLElement;
      this._last = target.matches(SELECTOR) ? this._last : target;
    });
    root.addEventListener(
      'keydown',
      event => {
        this._pointed = null;
        this._tabbed = event.key === 'Tab' ? performance.now() : -TAB_COUNTS;
      },
      capture
    );
    root.addEventListener(
      'pointerover',
      event => (this._pointed = event.target),
      capture
    );
    root.addEventListener('pointerdown', event => this._wake(event), capture);
    view.addEventListener('blur', () =>
      view.setTimeout(() => this._look(), 0)
    );
  }

  private _look(): void {
    const frame = this._root.activeElement;
    if (!(frame instanceof HTMLIFrameElement) || !frame.matches(SELECTOR)) {
      return;
    }
    const tabbed = performance.now() - this._tabbed < TAB_COUNTS;
    if (this._pointed === frame || tabbed) {
      return;
    }
    if (frame.hasAttribute('inert')) {
      const text = this._root.createElement('p');
      text.textContent = this._stopped;
      frame.srcdoc = text.outerHTML;
    }
    frame.toggleAttribute('inert', true);
    frame.blur();
    if (this._last?.isConnected) {
      this._last.focus({ preventScroll: true });
    }
  }

  /** A click where a sleeping frame lies wakes it: clicks go through a frame that is inert. */
  private _wake(event: PointerEvent): void {
    const frames = this._root.querySelectorAll<HTMLIFrameElement>(
      `${SELECTOR}[inert]`
    );
    for (const frame of Array.from(frames)) {
      const { left, right, top, bottom } = frame.getBoundingClientRect();
      const { clientX: x, clientY: y } = event;
      if (x >= left && x <= right && y >= top && y <= bottom) {
        frame.toggleAttribute('inert', false);
        this._pointed = frame;
      }
    }
  }
}
