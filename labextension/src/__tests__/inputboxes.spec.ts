import { describe, expect, it } from 'vitest';
import { InputBoxes, PROMPT_MARK } from '../inputboxes';
import type { ApprovalView } from '../protocol';
import { bundle, question } from './synthetic';

function promptOf(item: ApprovalView, code = '1234'): string {
  return `${PROMPT_MARK} ${item.title}. ${item.what} ${item.meaning} Type 'allow ${code}'`;
}

/** A node with one input box for each prompt; what is sent is noted and the box removed, as JupyterLab does. */
function notebook(...prompts: string[]) {
  const node = document.createElement('div');
  const sent: [string, string][] = [];
  for (const prompt of prompts) {
    const box = document.createElement('div');
    box.className = 'jp-Stdin';
    box.innerHTML = '<pre class="jp-Stdin-prompt"></pre><input>';
    box.querySelector('pre')!.textContent = prompt;
    box.addEventListener('keydown', event => {
      if (event.key === 'Enter') {
        sent.push([prompt, box.querySelector('input')!.value]);
        box.remove();
      }
    });
    node.appendChild(box);
  }
  return { node, sent };
}

describe('InputBoxes', () => {
  const asked = question({ request_id: 'a', subject: 'x', what: 'It wants x.' });
  const other = question({ request_id: 'b', subject: 'y', what: 'It wants y.' });
  const words = bundle({});

  it('closes the box of a question once that has ended, and no other', () => {
    const { node, sent } = notebook(
      promptOf(asked),
      promptOf(other),
      'name? ',
      `[from the sandbox] ${promptOf(asked)}`
    );
    const boxes = new InputBoxes(words);
    boxes.follow(node, [asked, other]);
    expect(sent).toEqual([]);
    boxes.follow(node, [other]);
    expect(sent).toEqual([[promptOf(asked), '(this question has ended)']]);
    boxes.follow(node, []);
    expect(sent.map(([prompt]) => prompt)).toEqual([
      promptOf(asked),
      promptOf(other)
    ]);
    expect(node.querySelectorAll('.jp-Stdin').length).toBe(2);
  });

  it('leaves a box alone whose question it never saw', () => {
    const { node, sent } = notebook(promptOf(asked));
    new InputBoxes(words).follow(node, []);
    expect(sent).toEqual([]);
  });

  it('leaves the box of the same question, asked again, open', () => {
    const boxes = new InputBoxes(words);
    boxes.follow(notebook().node, [asked]);
    boxes.follow(notebook().node, []);
    const { node, sent } = notebook(promptOf(asked, '9999'));
    boxes.follow(node, [{ ...asked, request_id: 'again' }]);
    expect(sent).toEqual([]);
    boxes.follow(node, []);
    expect(sent.length).toBe(1);
  });
});
