import * as React from 'react';
import { act } from 'react';
import { createRoot, Root } from 'react-dom/client';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ApprovalCard } from '../components/approvalcard';
import { ARM_DELAY } from '../guard';
import type { KernelLink } from '../link';
import type { ApprovalView } from '../protocol';
import { bundle, question } from './synthetic';

describe('ApprovalCard', () => {
  let host: HTMLElement;
  let root: Root;
  let asked: Record<string, unknown>[];
  let accepted: boolean;

  const link = {
    remaining: () => 61,
    refresh: async () => undefined,
    request: async (ask: Record<string, unknown>) => {
      asked.push(ask);
      return { accepted, message: 'no more' };
    }
  } as unknown as KernelLink;

  const show = (approval: ApprovalView, trusted = true) =>
    act(() => {
      root.render(
        <ApprovalCard
          approval={approval}
          link={link}
          trans={bundle()}
          asker="Cell [1]"
          position={1}
          count={2}
          trusted={() => trusted}
        />
      );
    });
  const button = (text: string) =>
    [...host.querySelectorAll('button')].find(b => b.textContent === text)!;
  const click = (text: string) =>
    act(async () => {
      button(text).dispatchEvent(
        new MouseEvent('click', { bubbles: true, detail: 1 })
      );
    });
  const wait = (time: number) =>
    act(async () => {
      await vi.advanceTimersByTimeAsync(time);
    });

  beforeEach(() => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'setInterval', 'performance', 'clearTimeout', 'clearInterval'] });
    asked = [];
    accepted = true;
    host = document.createElement('div');
    document.body.appendChild(host);
    root = createRoot(host);
  });

  afterEach(() => {
    act(() => root.unmount());
    host.remove();
    vi.useRealTimers();
  });

  it('shows who asks for what, Deny first, and how long', () => {
    show(question());
    expect(host.querySelector('h3')!.textContent).toBe(
      'Give the sandbox network access'
    );
    expect(host.querySelector('.agently-exact')!.textContent).toBe(
      'A cell asks for network access: pypi.example:443.'
    );
    expect(
      [...host.querySelectorAll('.agently-buttons button')].map(
        b => b.textContent
      )
    ).toEqual(['Deny', 'Allow once', 'Allow for this session']);
    expect(host.textContent).toContain('1 of 2');
    expect(host.textContent).toContain('Denied in 1:01 if nobody answers.');
  });

  it('takes a no at once and a yes after the delay, with nonce and digest', async () => {
    show(question());
    await click('Allow once');
    expect(asked).toEqual([]);
    await click('Deny');
    expect(asked).toEqual([
      {
        action: 'decide',
        request_id: 'r1',
        nonce: 'n1',
        digest: 'sha256:d1',
        outcome: 'denied',
        confirm: ''
      }
    ]);
    await wait(ARM_DELAY + 50);
    await click('Allow for this session');
    expect(asked[1].outcome).toBe('approved_session');
  });

  it('takes no yes of a script', async () => {
    show(question(), false);
    await wait(ARM_DELAY + 50);
    await click('Allow once');
    expect(asked).toEqual([]);
  });

  it('goes back to sleep when another question takes its place', async () => {
    show(question());
    await wait(ARM_DELAY + 50);
    expect(button('Allow once').getAttribute('aria-disabled')).toBe('false');
    show(question({ request_id: 'r2' }));
    expect(button('Allow once').getAttribute('aria-disabled')).toBe('true');
    await click('Allow once');
    expect(asked).toEqual([]);
  });

  it('wants the word for something grave, and offers no session', async () => {
    show(question({ confirm: 'trusted_local', allow_session: false }));
    await wait(ARM_DELAY + 50);
    await click('Allow once');
    expect(asked).toEqual([]);
    expect(button('Allow for this session')).toBeUndefined();
    await act(async () => {
      const input = host.querySelector('input')!;
      Object.getOwnPropertyDescriptor(
        HTMLInputElement.prototype,
        'value'
      )!.set!.call(input, 'trusted_local');
      input.dispatchEvent(new Event('input', { bubbles: true }));
    });
    await click('Allow once');
    expect(asked[0]).toMatchObject({
      outcome: 'approved_once',
      confirm: 'trusted_local'
    });
  });

  it('says when the kernel did not take the answer', async () => {
    accepted = false;
    show(question());
    await click('Deny');
    expect(host.querySelector('[role=alert]')!.textContent).toBe('no more');
  });

  it('shows what a guest wrote as text', () => {
    show(question({ what: '<img src=x onerror=alert(1)>', subject: '' }));
    expect(host.querySelector('img')).toBeNull();
    expect(host.querySelector('.agently-exact')!.textContent).toBe(
      '<img src=x onerror=alert(1)>'
    );
  });
});
