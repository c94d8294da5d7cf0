import type { ISessionContext } from '@jupyterlab/apputils';
import { Signal } from '@lumino/signaling';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { KernelLink } from '../link';
import type { PanelReply } from '../protocol';
import { event, question, snapshot } from './synthetic';

/** A session context whose kernel is answered by hand. */
class SyntheticContext {
  sent: { content: Record<string, unknown>; reply: (r: object) => void }[] = [];
  kernel: unknown;
  kernelDisplayStatus = 'idle';
  ready = Promise.resolve();
  specsManager;
  kernelChanged = new Signal<this, unknown>(this);
  statusChanged = new Signal<this, string>(this);
  connectionStatusChanged = new Signal<this, string>(this);
  iopubMessage = new Signal<this, unknown>(this);

  constructor(metadata: object = { agently: {} }) {
    this.specsManager = { specs: { kernelspecs: { k: { metadata } } } };
    this.kernel = {
      name: 'k',
      clientId: 'c',
      username: 'u',
      isDisposed: false,
      handleComms: true,
      registerCommTarget: () => undefined,
      requestCommInfo: async () => ({ content: { status: 'ok', comms: {} } }),
      sendControlMessage: (message: { content: Record<string, unknown> }) => {
        const future = {
          onReply: (_: unknown): void => undefined,
          dispose: () => undefined
        };
        this.sent.push({
          content: message.content,
          reply: content => future.onReply({ content })
        });
        return future;
      }
    };
  }

  get session(): unknown {
    return this.kernel ? { kernel: this.kernel } : null;
  }

  tell(content: object): void {
    const header = { msg_type: 'agently_panel_event' };
    this.iopubMessage.emit({ header, content });
  }
}

const answer = (fields: Partial<PanelReply>) => ({
  version: 1,
  action: '',
  status: 'ok',
  code: '',
  message: '',
  accepted: true,
  ...fields
});

describe('KernelLink', () => {
  let context: SyntheticContext;
  let link: KernelLink;
  const start = (metadata?: object) => {
    context = new SyntheticContext(metadata);
    link = new KernelLink(context as unknown as ISessionContext);
  };
  const settle = () => vi.advanceTimersByTimeAsync(0);

  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    link.dispose();
    vi.useRealTimers();
  });

  it('attaches, follows events, and asks again after a gap', async () => {
    start();
    expect(context.sent[0].content).toMatchObject({
      version: 1,
      action: 'attach'
    });
    context.sent[0].reply(answer({ snapshot: snapshot() }));
    await settle();
    expect(link.state).toBe('linked');
    context.tell(event({ seq: 5, approvals: [question()] }));
    expect(link.approvals.length).toBe(1);
    context.tell(event({ seq: 7, approvals: [] }));
    expect(link.approvals.length).toBe(1);
    expect(context.sent[1].content).toMatchObject({ action: 'renew', seq: 5 });
    context.sent[1].reply(answer({ snapshot: snapshot({ seq: 7 }) }));
    await settle();
    expect(link.approvals.length).toBe(0);
  });

  it('holds its lease as long as what it shows may be seen', async () => {
    start();
    context.sent[0].reply(answer({ snapshot: snapshot() }));
    await settle();
    const hidden = vi.spyOn(document, 'hidden', 'get');
    const lease = () => context.sent[context.sent.length - 1].content.lease_seconds;
    expect(lease()).toBe(30);
    hidden.mockReturnValue(true);
    document.dispatchEvent(new Event('visibilitychange'));
    expect(lease()).toBe(120);
    window.dispatchEvent(new Event('pagehide'));
    expect(lease()).toBe(20);
    document.dispatchEvent(new Event('visibilitychange'));
    expect(lease()).toBe(20);
    hidden.mockReturnValue(false);
    window.dispatchEvent(new Event('pageshow'));
    expect(lease()).toBe(30);
    const sent = context.sent.length;
    link.dispose();
    window.dispatchEvent(new Event('pagehide'));
    expect(context.sent.slice(sent).map(each => each.content.action)).toEqual(['detach']);
    hidden.mockRestore();
  });

  it('keeps an event that overtakes the snapshot', async () => {
    start();
    context.tell(event({ seq: 5, approvals: [question()] }));
    context.sent[0].reply(answer({ snapshot: snapshot() }));
    await settle();
    expect(link.snapshot!.seq).toBe(5);
    expect(link.approvals.length).toBe(1);
  });

  it('goes not back to a snapshot that an event overtook', async () => {
    start();
    context.sent[0].reply(answer({ snapshot: snapshot() }));
    await settle();
    void link.refresh();
    context.tell(event({ seq: 5, approvals: [question()] }));
    context.sent[1].reply(answer({ snapshot: snapshot({ seq: 4 }) }));
    await settle();
    expect(link.approvals.length).toBe(1);
  });

  it('asks an ordinary kernel nothing', async () => {
    start({});
    await settle();
    expect(link.state).toBe('foreign');
    expect(context.sent).toEqual([]);
  });

  it('is lost when nobody answers, and comes back', async () => {
    start();
    await vi.advanceTimersByTimeAsync(4_000);
    expect(link.state).toBe('lost');
    await vi.advanceTimersByTimeAsync(500);
    context.sent[1].reply(answer({ snapshot: snapshot() }));
    await settle();
    expect(link.state).toBe('linked');
  });

  it('shows why a kernel of another version refuses', async () => {
    start();
    context.sent[0].reply(answer({ status: 'error', message: 'Reload.' }));
    await settle();
    expect([link.state, link.message]).toEqual(['refused', 'Reload.']);
  });

  it('drops everything of a kernel that restarts', async () => {
    start();
    context.sent[0].reply(
      answer({ snapshot: snapshot({ approvals: [question()] }) })
    );
    await settle();
    context.statusChanged.emit('restarting');
    expect([link.state, link.approvals.length]).toEqual(['linking', 0]);
    context.statusChanged.emit('idle');
    context.statusChanged.emit('idle');
    expect(context.sent.length).toBe(2);
    context.sent[1].reply(answer({ snapshot: snapshot({ seq: 1 }) }));
    await settle();
    expect(link.snapshot!.seq).toBe(1);
  });

  it('counts a question down from when it came', async () => {
    start();
    const waiting = question({ remaining: 90 });
    context.sent[0].reply(answer({ snapshot: snapshot({ approvals: [waiting] }) }));
    await settle();
    await vi.advanceTimersByTimeAsync(3_000);
    context.tell(event({ seq: 5 }));
    expect(Math.round(link.remaining(waiting)!)).toBe(87);
  });
});
