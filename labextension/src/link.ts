import type { ISessionContext } from '@jupyterlab/apputils';
import { Kernel, KernelMessage } from '@jupyterlab/services';
import { UUID } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';
import {
  ANNOUNCE_TARGET,
  AnyRequest,
  ApprovalView,
  EVENT_TYPE,
  PanelEvent,
  PanelReply,
  PanelSnapshot,
  PROTOCOL_VERSION,
  REQUEST_TYPE,
  WishRequest
} from './protocol';
import { reduce } from './reducer';

/** Why a panel shows facts, or why it does not. */
export type LinkState =
  | 'no-kernel'
  | 'foreign'
  | 'linking'
  | 'linked'
  | 'lost'
  | 'refused';

/** A request without what every request carries. */
export type Ask<T = AnyRequest> = T extends AnyRequest
  ? Omit<T, 'version' | 'client_id'>
  : never;

/** What the user's settings ask of a kernel; null is as it is configured. */
export type IWish = Pick<WishRequest, 'isolation' | 'approval_timeout_seconds'>;

const LEASE_SECONDS = 30;
/** Browsers wake a hidden page as rarely as once a minute; until its turn it still shows what it is told. */
const HIDDEN_LEASE_SECONDS = 120;
/** What a page that goes leaves for the one that may be loaded in its place. */
const RELOAD_SECONDS = 20;
const IDLE_POLL = 10_000;
const BUSY_POLL = 2_000;
const SHORT_TIMEOUT = 4_000;
const WISH_TIMEOUT = 35_000;
const MAX_EARLY = 50;
const RETRY = [500, 1_000, 2_000, 5_000, 10_000];

/**
 * The connection between one notebook's kernel and the panel: a lease, the newest snapshot, and requests.
 *
 * It uses the control channel, so it works while a cell runs, and it heals by itself: a lost event, a reconnect, a
 * restart and a changed kernel all end in a fresh snapshot.
 */
export class KernelLink implements IDisposable {
  readonly context: ISessionContext;
  private readonly _clientId = UUID.uuid4().replace(/-/g, '');
  private _kernel: Kernel.IKernelConnection | null = null;
  private _state: LinkState = 'no-kernel';
  private _message = '';
  private _snapshot: PanelSnapshot | null = null;
  private _early: PanelEvent[] = [];
  private _stamp = 0;
  private _lostAt = 0;
  private _turn = 0;
  private _attaching = 0;
  private _timer = 0;
  private _failures = 0;
  private _announced = false;
  private _wish: IWish = {};
  private _wished = '';
  private _leaving = false;
  private _disposed = false;
  private _changed = new Signal<this, void>(this);

  constructor(context: ISessionContext) {
    this.context = context;
    context.kernelChanged.connect(this._onKernelChanged, this);
    context.statusChanged.connect(this._onStatus, this);
    context.connectionStatusChanged.connect(this._onConnection, this);
    context.iopubMessage.connect(this._onIOPub, this);
    window.addEventListener('pagehide', this._onPage);
    window.addEventListener('pageshow', this._onPage);
    document.addEventListener('visibilitychange', this._onPage);
    void context.ready.then(() => this._onKernelChanged());
    this._onKernelChanged();
  }

  /** Emitted whenever something that is shown may have changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get state(): LinkState {
    return this._state;
  }

  /** The kernel's sentence when it refused this panel. */
  get message(): string {
    return this._message;
  }

  /** The newest facts; kept while a link is lost, so that they can be shown as old. */
  get snapshot(): PanelSnapshot | null {
    return this._snapshot;
  }

  /** When the link was lost, in seconds since the epoch. */
  get lostAt(): number {
    return this._lostAt;
  }

  get approvals(): ApprovalView[] {
    return this._state === 'linked' ? this._snapshot?.approvals ?? [] : [];
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  /** Seconds left to answer a question, by the kernel's clock. */
  remaining(approval: ApprovalView): number | null {
    if (approval.remaining === null || !this._snapshot) {
      return null;
    }
    const passed = (performance.now() - this._stamp) / 1000;
    return Math.max(0, approval.remaining - passed);
  }

  /** Send a request and return the reply. Rejects when the kernel does not answer in time (milliseconds). */
  async request(ask: Ask, timeout = SHORT_TIMEOUT): Promise<PanelReply> {
    const kernel = this._kernel;
    if (!kernel || kernel.isDisposed) {
      throw new Error('There is no kernel.');
    }
    const content = {
      ...ask,
      version: PROTOCOL_VERSION,
      client_id: this._clientId
    };
    const message = KernelMessage.createMessage({
      channel: 'control',
      msgType: REQUEST_TYPE,
      session: kernel.clientId,
      username: kernel.username,
      content
    } as unknown as KernelMessage.IOptions<KernelMessage.IDebugRequestMsg>);
    const future = kernel.sendControlMessage(message, true, false);
    let timer = 0;
    try {
      return await new Promise<PanelReply>((resolve, reject) => {
        future.onReply = reply =>
          resolve(reply.content as unknown as PanelReply);
        timer = window.setTimeout(
          () => reject(new Error('The kernel did not answer in time.')),
          timeout
        );
      });
    } finally {
      window.clearTimeout(timer);
      future.dispose();
    }
  }

  /** Say what the user's settings ask of this kernel, now and whenever it is linked anew. */
  setWish(wish: IWish): void {
    this._wish = wish;
    void this._sendWish();
  }

  /** Fetch a fresh snapshot now. */
  async refresh(): Promise<void> {
    await this._attach();
  }

  dispose(): void {
    if (this._disposed) {
      return;
    }
    this._disposed = true;
    window.removeEventListener('pagehide', this._onPage);
    window.removeEventListener('pageshow', this._onPage);
    document.removeEventListener('visibilitychange', this._onPage);
    window.clearTimeout(this._timer);
    if (this._state === 'linked') {
      this.request({ action: 'detach' }, 1_000).catch(() => undefined);
    }
    this._turn++;
    Signal.clearData(this);
  }

  /** The page goes, comes back, or is looked at or not: the lease is as long as what it shows can be seen. */
  private readonly _onPage = (event: Event): void => {
    if (event.type !== 'visibilitychange') {
      this._leaving = event.type === 'pagehide';
    }
    if (this._state === 'linked') {
      void this._renew();
    }
  };

  private get _leaseSeconds(): number {
    if (this._leaving) {
      return RELOAD_SECONDS;
    }
    return document.hidden ? HIDDEN_LEASE_SECONDS : LEASE_SECONDS;
  }

  private _onKernelChanged(): void {
    const kernel = this.context.session?.kernel ?? null;
    if (kernel === this._kernel || this._disposed) {
      return;
    }
    this._kernel = kernel;
    this._snapshot = null;
    this._early = [];
    this._failures = 0;
    this._announced = false;
    window.clearTimeout(this._timer);
    this._turn++;
    if (!kernel) {
      this._set('no-kernel');
      return;
    }
    if (this._isOurs(kernel)) {
      void this._attach();
    } else {
      this._set('foreign');
      this._listenForAnnouncement(kernel);
    }
  }

  private _isOurs(kernel: Kernel.IKernelConnection): boolean {
    const spec = this.context.specsManager.specs?.kernelspecs[kernel.name];
    return (
      spec?.metadata?.agently !== undefined ||
      (spec?.argv ?? []).includes('agently_kernel') ||
      kernel.name === 'agently'
    );
  }

  /** An ordinary kernel that loaded the magic says so by a comm; one that did not is never asked anything. */
  private _listenForAnnouncement(kernel: Kernel.IKernelConnection): void {
    const welcome = () => {
      if (this._kernel === kernel && !this._disposed && !this._announced) {
        this._announced = true;
        void this._attach();
      }
    };
    if (kernel.handleComms) {
      kernel.registerCommTarget(ANNOUNCE_TARGET, welcome);
    }
    kernel
      .requestCommInfo({ target_name: ANNOUNCE_TARGET })
      .then(reply => {
        const comms =
          reply.content.status === 'ok' ? reply.content.comms : {};
        if (
          Object.values(comms).some(c => c.target_name === ANNOUNCE_TARGET)
        ) {
          welcome();
        }
      })
      .catch(() => undefined);
  }

  private _onStatus(_: ISessionContext, status: Kernel.Status): void {
    if (status === 'restarting' || status === 'autorestarting') {
      this._snapshot = null;
      this._early = [];
      this._turn++;
      window.clearTimeout(this._timer);
      if (this._active()) {
        this._set('linking');
        this._later(1_000);
      }
    } else if (status === 'dead' && this._active()) {
      this._lose();
    } else if (status === 'busy' && this._state === 'linked') {
      this._later(BUSY_POLL);
    } else if (
      this._state === 'linking' &&
      this._attaching !== this._turn &&
      (status === 'idle' || status === 'starting')
    ) {
      void this._attach();
    }
    this._changed.emit();
  }

  private _onConnection(
    _: ISessionContext,
    status: Kernel.ConnectionStatus
  ): void {
    if (!this._active()) {
      return;
    }
    if (
      status === 'connected' &&
      this._state !== 'linked' &&
      this._attaching !== this._turn
    ) {
      void this._attach();
    } else if (status === 'disconnected') {
      this._lose();
    }
  }

  private _onIOPub(
    _: ISessionContext,
    message: KernelMessage.IMessage
  ): void {
    const type = message.header.msg_type as string;
    if (type !== EVENT_TYPE || !this._active()) {
      return;
    }
    const event = message.content as unknown as PanelEvent;
    if (!this._snapshot || this._state !== 'linked') {
      // Events and replies travel on two channels: one may overtake the other.
      this._early = [...this._early, event].slice(-MAX_EARLY);
      return;
    }
    const next = reduce(this._snapshot, event);
    if (next === null) {
      void this._renew();
    } else if (next !== this._snapshot) {
      this._accept(next);
    }
  }

  private _active(): boolean {
    return this._state !== 'no-kernel' && this._state !== 'foreign';
  }

  private async _attach(): Promise<void> {
    const turn = ++this._turn;
    this._attaching = turn;
    window.clearTimeout(this._timer);
    if (this._state !== 'linked') {
      this._set('linking');
    }
    let reply: PanelReply;
    try {
      reply = await this.request({
        action: 'attach',
        lease_seconds: this._leaseSeconds
      });
    } catch {
      if (turn === this._turn) {
        this._attaching = 0;
        this._lose();
        this._later(RETRY[Math.min(this._failures++, RETRY.length - 1)]);
      }
      return;
    }
    if (turn !== this._turn || this._disposed) {
      return;
    }
    if (reply.status === 'error' || !reply.snapshot) {
      this._message = reply.message;
      this._set('refused');
      return;
    }
    this._failures = 0;
    this._attaching = 0;
    this._state = 'linked';
    const early = this._early;
    this._early = [];
    let snapshot = this._newer(reply.snapshot);
    for (const event of early) {
      snapshot = reduce(snapshot, event) ?? snapshot;
    }
    this._accept(snapshot);
    this._later();
    void this._sendWish();
  }

  private async _sendWish(): Promise<void> {
    if (this._state !== 'linked' || !this._snapshot) {
      return;
    }
    const { policy, session } = this._snapshot;
    const { isolation = null, approval_timeout_seconds = null } = this._wish;
    const key = JSON.stringify([session.started_at, isolation, approval_timeout_seconds]);
    const wanted = isolation !== null || approval_timeout_seconds !== null;
    if (key === this._wished || (!wanted && policy.wishes.length === 0)) {
      return;
    }
    this._wished = key;
    try {
      await this.request(
        { action: 'wish', isolation, approval_timeout_seconds },
        WISH_TIMEOUT
      );
    } catch {
      this._wished = ''; // asked again when the kernel is linked again
    }
  }

  private async _renew(): Promise<void> {
    const turn = this._turn;
    try {
      const reply = await this.request({
        action: 'renew',
        lease_seconds: this._leaseSeconds,
        seq: this._snapshot?.seq ?? 0
      });
      if (turn !== this._turn || this._disposed) {
        return;
      }
      if (reply.snapshot) {
        this._accept(this._newer(reply.snapshot));
      }
      this._later();
    } catch {
      if (turn === this._turn) {
        void this._attach();
      }
    }
  }

  private _later(delay?: number): void {
    window.clearTimeout(this._timer);
    const busy =
      this.context.kernelDisplayStatus === 'busy' ||
      this._snapshot?.session.status === 'busy';
    this._timer = window.setTimeout(
      () => {
        if (this._disposed) {
          return;
        }
        if (this._state === 'linked') {
          void this._renew();
        } else {
          void this._attach();
        }
      },
      delay ?? (busy ? BUSY_POLL : IDLE_POLL)
    );
  }

  /** A snapshot, unless events that overtook it made a newer one of the same session. */
  private _newer(snapshot: PanelSnapshot): PanelSnapshot {
    const known = this._snapshot;
    const same =
      known !== null &&
      known.session.started_at === snapshot.session.started_at;
    return same && known.seq > snapshot.seq ? known : snapshot;
  }

  private _accept(snapshot: PanelSnapshot): void {
    // Questions that an event did not touch count on from when they came.
    if (this._snapshot?.approvals !== snapshot.approvals) {
      this._stamp = performance.now();
    }
    this._snapshot = snapshot;
    this._changed.emit();
  }

  private _lose(): void {
    if (this._state !== 'lost') {
      this._lostAt = Date.now() / 1000;
      this._set('lost');
    }
  }

  private _set(state: LinkState): void {
    this._state = state;
    this._changed.emit();
  }
}
