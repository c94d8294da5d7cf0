/** Frames of active output are made by the kernel and cannot be measured from outside: they report their own height. */

export const SELECTOR = 'iframe.agently-frame[sandbox="allow-scripts"]';
const LOWEST = 40;
const HIGHEST = 2000;
/** Room for the margins of the document in the frame (pixels). */
const MARGINS = 20;
/** How often one frame may change its height; a hostile one would do so for ever. */
const MOST_CHANGES = 40;

/**
 * The height that a frame should get, or null when it stays as it is.
 *
 * `reported` comes out of a sandbox and may be anything. A document that is always as high as its frame must not make it
 * grow for ever.
 */
export function heightFor(reported: unknown, current: number): number | null {
  if (typeof reported !== 'number' || !Number.isFinite(reported)) {
    return null;
  }
  if (reported <= current && reported >= current - MARGINS) {
    return null;
  }
  const height = Math.round(
    Math.min(HIGHEST, Math.max(LOWEST, reported + MARGINS))
  );
  return height === current ? null : height;
}

/** Gives frames of output the height that they report. A height that a person chose by dragging stays. */
export class FrameHeights {
  private _known = new WeakMap<
    HTMLIFrameElement,
    { set: string; changes: number }
  >();

  constructor(private _root: Document = document) {}

  /** Take a message of any window. */
  take(event: Pick<MessageEvent, 'data' | 'source'>): void {
    if (event.data?.type !== 'agently.frame.height' || !event.source) {
      return;
    }
    const frames = this._root.querySelectorAll<HTMLIFrameElement>(SELECTOR);
    for (const frame of Array.from(frames)) {
      if (frame.contentWindow === event.source) {
        this._resize(frame, event.data.height);
        return;
      }
    }
  }

  private _resize(frame: HTMLIFrameElement, reported: unknown): void {
    const known = this._known.get(frame) ?? {
      set: frame.style.height,
      changes: 0
    };
    const height = heightFor(reported, parseFloat(frame.style.height) || 0);
    if (
      height === null ||
      frame.style.height !== known.set ||
      known.changes >= MOST_CHANGES
    ) {
      return;
    }
    frame.style.height = `${height}px`;
    this._known.set(frame, {
      set: frame.style.height,
      changes: known.changes + 1
    });
  }
}
