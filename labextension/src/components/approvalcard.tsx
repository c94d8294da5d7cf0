import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';
import { askedByPanel } from '../cells';
import { countdown, sentence } from '../format';
import { ActivationGuard, ARM_DELAY } from '../guard';
import { replyText } from '../kerneltexts';
import type { KernelLink } from '../link';
import type { ApprovalView, DecideRequest } from '../protocol';

export interface IApprovalCardProps {
  approval: ApprovalView;
  link: KernelLink;
  trans: TranslationBundle;
  /** Who asks, for example "cell [7] of analysis.ipynb". */
  asker: string;
  /** Which of how many questions this is. */
  position: number;
  count: number;
  onGoToCell?: () => void;
  /** Put the focus back where it was. */
  onLeave?: () => void;
  /** For tests that cannot make trusted events. */
  trusted?: (event: Event) => boolean;
}

/** IntersectionObserver with the second version's visibility tracking, where the browser has it. */
interface ITrackedEntry extends IntersectionObserverEntry {
  isVisible?: boolean;
}

/** True while something lies over the element; false where the browser cannot tell. */
function useCovered(ref: React.RefObject<HTMLElement>): boolean {
  const [covered, setCovered] = React.useState(false);
  React.useEffect(() => {
    const element = ref.current;
    if (!element || typeof IntersectionObserver === 'undefined') {
      return;
    }
    const options = {
      threshold: [0.9],
      trackVisibility: true,
      delay: 100
    } as IntersectionObserverInit;
    const observer = new IntersectionObserver(entries => {
      const entry = entries[entries.length - 1] as ITrackedEntry;
      if (entry.isVisible !== undefined && entry.intersectionRatio >= 0.9) {
        setCovered(!entry.isVisible);
      }
    }, options);
    observer.observe(element);
    return () => observer.disconnect();
  }, [ref]);
  return covered;
}

/** One question, outside of every output. Deny is always awake; the allow buttons wake after a moment. */
export function ApprovalCard(props: IApprovalCardProps): JSX.Element {
  const { approval, link, trans } = props;
  const grave = approval.confirm !== '';
  const guard = React.useRef(new ActivationGuard());
  const buttons = React.useRef<HTMLDivElement>(null);
  const card = React.useRef<HTMLDivElement>(null);
  const before = React.useRef<HTMLElement | null>(null);
  const covered = useCovered(buttons);
  const [awake, setAwake] = React.useState(false);
  const [typed, setTyped] = React.useState('');
  const [sending, setSending] = React.useState(false);
  const [problem, setProblem] = React.useState('');
  const [, tick] = React.useState(0);
  const titleId = `agently-card-${approval.request_id}`;

  React.useEffect(() => {
    let timer = 0;
    const sleep = () => {
      guard.current.rearm();
      setAwake(false);
      window.clearTimeout(timer);
      timer = window.setTimeout(() => setAwake(true), ARM_DELAY + 20);
    };
    const onVisible = () => document.visibilityState === 'visible' && sleep();
    sleep();
    document.addEventListener('visibilitychange', onVisible);
    return () => {
      window.clearTimeout(timer);
      document.removeEventListener('visibilitychange', onVisible);
    };
  }, [approval.request_id, covered, props.position]);

  // What the reader of this panel has just clicked for is brought into view; no other question moves the page.
  const clicked = askedByPanel(approval);
  React.useEffect(() => {
    if (clicked) {
      card.current?.scrollIntoView?.({ block: 'nearest' });
      card.current?.focus({ preventScroll: true });
    }
  }, [approval.request_id, clicked]);

  React.useEffect(() => {
    const timer = window.setInterval(() => tick(n => n + 1), 1000);
    return () => window.clearInterval(timer);
  }, []);

  // The card goes with its answer, and the focus with it: the next key belongs to where the reader worked before.
  const giveBack = () => {
    const now = document.activeElement;
    if (now && now !== document.body && !card.current?.contains(now)) {
      return;
    }
    if (before.current?.isConnected) {
      before.current.focus({ preventScroll: true });
    } else {
      props.onLeave?.();
    }
  };

  const decide = async (
    outcome: DecideRequest['outcome'],
    event: React.MouseEvent
  ) => {
    const native = event.nativeEvent;
    const trusted = props.trusted ? props.trusted(native) : native.isTrusted;
    if (outcome !== 'denied') {
      const ready = awake && !covered && (!grave || typed === approval.confirm);
      const press = { isTrusted: trusted, detail: native.detail };
      if (!ready || !guard.current.allows(press)) {
        return;
      }
    }
    setSending(true);
    setProblem('');
    try {
      const reply = await link.request({
        action: 'decide',
        request_id: approval.request_id,
        nonce: approval.nonce,
        digest: approval.digest,
        outcome,
        confirm: typed
      });
      if (!reply.accepted) {
        setProblem(replyText(trans, reply.message));
      } else if (props.count === 1) {
        giveBack();
      }
    } catch {
      setProblem(trans.__('The kernel did not answer. Nothing was allowed.'));
    }
    setSending(false);
    void link.refresh();
  };

  const asleep =
    sending || !awake || covered || (grave && typed !== approval.confirm);
  const left = link.remaining(approval);
  const noRepeat = (event: React.KeyboardEvent) => {
    if (event.repeat && (event.key === 'Enter' || event.key === ' ')) {
      event.preventDefault();
    }
  };

  return (
    <div
      className={`agently-Card${grave ? ' agently-mod-grave' : ''}`}
      role="group"
      aria-labelledby={titleId}
      tabIndex={-1}
      ref={card}
      data-request={approval.request_id}
      data-created={approval.created_at}
      onFocus={event => {
        const from = event.relatedTarget;
        if (
          from instanceof HTMLElement &&
          from.tagName !== 'IFRAME' &&
          !from.closest('.agently-Panel, .agently-Banner')
        ) {
          before.current = from;
        }
      }}
      onKeyDown={event => {
        if (event.key === 'Escape') {
          props.onLeave?.();
        }
        noRepeat(event);
      }}
    >
      <div className="agently-Card-head">
        <h3 id={titleId}>{trans.__(approval.title)}</h3>
        {props.count > 1 && (
          <span className="agently-small">
            {trans.__('%1 of %2', props.position, props.count)}
          </span>
        )}
      </div>
      <dl className="agently-facts">
        <dt>{trans.__('Asked by')}</dt>
        <dd>
          {props.onGoToCell ? (
            <button
              type="button"
              className="agently-link"
              onClick={props.onGoToCell}
            >
              {props.asker}
            </button>
          ) : (
            props.asker
          )}
        </dd>
        <dt>{trans.__('What')}</dt>
        <dd className="agently-exact">
          {sentence(trans, approval.what, approval.subject)}
        </dd>
        {approval.why && (
          <>
            <dt>{trans.__('Why')}</dt>
            <dd>{sentence(trans, approval.why, approval.subject)}</dd>
          </>
        )}
        <dt>{trans.__('If allowed')}</dt>
        <dd>{sentence(trans, approval.meaning, approval.subject)}</dd>
      </dl>
      {grave && (
        <label className="agently-confirm">
          {trans.__('Type %1 to be able to allow this', approval.confirm)}
          <input
            type="text"
            className="jp-mod-styled"
            autoComplete="off"
            spellCheck={false}
            value={typed}
            onChange={event => setTyped(event.target.value)}
          />
        </label>
      )}
      <div className="agently-buttons" ref={buttons}>
        <button
          type="button"
          className="jp-mod-styled agently-button agently-deny"
          onClick={event => void decide('denied', event)}
        >
          {trans.__('Deny')}
        </button>
        <button
          type="button"
          className="jp-mod-styled agently-button agently-once"
          aria-disabled={asleep}
          onClick={event => void decide('approved_once', event)}
        >
          {trans.__('Allow once')}
        </button>
        {approval.allow_session && (
          <button
            type="button"
            className="jp-mod-styled agently-button agently-session"
            aria-disabled={asleep}
            title={trans.__(
              'Allows exactly this, until the kernel is restarted.'
            )}
            onClick={event => void decide('approved_session', event)}
          >
            {trans.__('Allow for this session')}
          </button>
        )}
      </div>
      {covered && (
        <p className="agently-problem" role="alert">
          {trans.__('Something lies over this question, so it cannot be allowed.')}
        </p>
      )}
      {problem && (
        <p className="agently-problem" role="alert">
          {problem}
        </p>
      )}
      <p className="agently-small agently-count" aria-live="off">
        {left === null
          ? trans.__('Waits until you answer or stop the cell.')
          : trans.__('Denied in %1 if nobody answers.', countdown(left))}
      </p>
    </div>
  );
}
