/** What of a click or key press matters to the guard. */
export interface IActivation {
  isTrusted: boolean;
  /** Click count of a mouse click; 0 for a key press. */
  detail: number;
}

/** How long the allow buttons stay asleep after a card appears, changes or comes back into view (milliseconds). */
export const ARM_DELAY = 600;

/**
 * Keeps an allow button from being pressed by a script, or by a person who was just about to click something else.
 *
 * Deny never passes through here: it is always awake.
 */
export class ActivationGuard {
  private _now: () => number;
  private _armedAt: number;

  constructor(now: () => number = () => performance.now()) {
    this._now = now;
    this._armedAt = now() + ARM_DELAY;
  }

  /** Put the button to sleep again. */
  rearm(): void {
    this._armedAt = this._now() + ARM_DELAY;
  }

  /** Milliseconds until the button wakes; 0 when it is awake. */
  get wait(): number {
    return Math.max(0, this._armedAt - this._now());
  }

  /** True when this activation may count as a person's yes. */
  allows(event: IActivation): boolean {
    return event.isTrusted && event.detail <= 1 && this.wait === 0;
  }
}
