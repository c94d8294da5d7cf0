import type { ExecutionView, PanelEvent, PanelSnapshot, TimelineEntry } from './protocol';

/** How much of the two growing lists a page keeps. */
export const MAX_TIMELINE = 500;
export const MAX_EXECUTIONS = 200;

/**
 * Return the snapshot after an event, the same snapshot for an event it already contains, or null when an event was
 * lost in between (the caller then asks for a new snapshot).
 */
export function reduce(
  snapshot: PanelSnapshot,
  event: PanelEvent
): PanelSnapshot | null {
  if (event.seq <= snapshot.seq) {
    return snapshot;
  }
  if (event.seq !== snapshot.seq + 1) {
    return null;
  }
  return {
    version: snapshot.version,
    seq: event.seq,
    now: event.now,
    session: event.session ?? snapshot.session,
    policy: event.policy ?? snapshot.policy,
    sandbox: event.sandbox ? event.sandbox[0] : snapshot.sandbox,
    selection: event.selection ? event.selection[0] : snapshot.selection,
    inputs: event.inputs ?? snapshot.inputs,
    approvals: event.approvals ?? snapshot.approvals,
    grants: event.grants ?? snapshot.grants,
    outputs: event.outputs ?? snapshot.outputs,
    withheld: event.withheld ?? snapshot.withheld,
    executions: merge(snapshot.executions, event.executions),
    timeline: append(snapshot.timeline, event.timeline)
  };
}

function merge(
  known: ExecutionView[],
  changed: ExecutionView[] | null
): ExecutionView[] {
  if (!changed || changed.length === 0) {
    return known;
  }
  const byId = new Map(known.map(item => [item.execution_id, item]));
  for (const item of changed) {
    byId.set(item.execution_id, item);
  }
  return [...byId.values()].slice(-MAX_EXECUTIONS);
}

function append(
  known: TimelineEntry[],
  added: TimelineEntry[] | null
): TimelineEntry[] {
  if (!added || added.length === 0) {
    return known;
  }
  const last = known.length > 0 ? known[known.length - 1].number : 0;
  const fresh = added.filter(entry => entry.number > last);
  return [...known, ...fresh].slice(-MAX_TIMELINE);
}
