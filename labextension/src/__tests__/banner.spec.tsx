import { Widget } from '@lumino/widgets';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { Signal } from '@lumino/signaling';
import { act } from 'react';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { KernelLink } from '../link';
import type { ISandboxSessions } from '../tokens';
import { BannerWidget } from '../widgets';
import { bundle, question } from './synthetic';

describe('BannerWidget', () => {
  let banner: BannerWidget;
  let width: number;
  let resized: () => void;

  beforeEach(async () => {
    width = 0;
    vi.stubGlobal(
      'ResizeObserver',
      class {
        constructor(callback: () => void) {
          resized = callback;
        }
        observe() {}
        disconnect() {}
      }
    );
    const link = { approvals: [question()], remaining: () => 61 };
    const sessions: Record<string, unknown> = { current: null };
    sessions.changed = new Signal(sessions);
    banner = new BannerWidget(
      sessions as unknown as ISandboxSessions,
      bundle(),
      { content: { widgets: [] } } as unknown as NotebookPanel,
      link as unknown as KernelLink
    );
    banner.hide();
    await act(async () => Widget.attach(banner, document.body));
    // Text that has no width stands one word a line, which is what a layout engine makes of it before its turn.
    Object.defineProperty(banner.node, 'clientWidth', { get: () => width });
    const inner = banner.node.querySelector('.agently-Banner-inner')!;
    Object.defineProperty(inner, 'clientHeight', {
      get: () => (width ? 198 : 2206)
    });
  });

  afterEach(() => {
    act(() => banner.dispose());
    vi.unstubAllGlobals();
  });

  it('asks for the height of its question only once it has its width', () => {
    act(() => banner.follow());
    expect(banner.isHidden).toBe(false);
    expect(banner.node.style.minHeight).toBe('');
    width = 1170;
    resized();
    expect(banner.node.style.minHeight).toBe('198px');
  });
});
