import type { TranslationBundle } from '@jupyterlab/translation';
import type { ApprovalView } from './protocol';

/** How a question of the kernel's own begins in a front end's input box (approvals.py); no guest's prompt begins so. */
export const PROMPT_MARK = 'Agently approval ·';
const MAX_ENDED = 50;
const COMPARED = 200;

/** Whether the input box with this prompt asks what the panel asks here. */
export function asksTheSame(prompt: string, approval: ApprovalView): boolean {
  const [what] = approval.what.split('\n');
  const start = `${PROMPT_MARK} ${approval.title}. ${what}`;
  return prompt.startsWith(start.slice(0, COMPARED));
}

/**
 * Closes the input box of a question that has ended otherwise: answered in a panel, timed out, withdrawn.
 *
 * A question that was asked before a page was linked is in an input box and, once the page is linked, in the panel too.
 * A box that is left open would keep JupyterLab from running further cells. One for each link.
 */
export class InputBoxes {
  private _trans: TranslationBundle;
  private _open = new Map<string, ApprovalView>();
  private _ended: ApprovalView[] = [];

  constructor(trans: TranslationBundle) {
    this._trans = trans;
  }

  /** Look at the questions that are open now and at the boxes below *node*. */
  follow(node: HTMLElement, approvals: ApprovalView[]): void {
    const open = new Map(approvals.map(item => [item.request_id, item]));
    const gone = [...this._open.values()].filter(
      item => !open.has(item.request_id)
    );
    this._open = open;
    this._ended = [...this._ended, ...gone].slice(-MAX_ENDED);
    if (this._ended.length === 0) {
      return;
    }
    for (const box of node.querySelectorAll<HTMLElement>('.jp-Stdin')) {
      const prompt = box.querySelector('.jp-Stdin-prompt')?.textContent ?? '';
      const ended = this._ended.some(item => asksTheSame(prompt, item));
      const waits = approvals.some(item => asksTheSame(prompt, item));
      if (ended && !waits) {
        this._close(box);
      }
    }
  }

  /** Send the box as a person would. The kernel takes no answer to a question that has ended. */
  private _close(box: HTMLElement): void {
    const input = box.querySelector('input');
    if (input) {
      input.value = this._trans.__('(this question has ended)');
      input.dispatchEvent(
        new KeyboardEvent('keydown', { key: 'Enter', bubbles: true })
      );
    }
  }
}
