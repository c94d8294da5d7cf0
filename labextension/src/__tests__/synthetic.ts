import type { TranslationBundle } from '@jupyterlab/translation';
import type {
  ApprovalView,
  ExecutionView,
  PanelEvent,
  PanelSnapshot,
  TimelineEntry
} from '../protocol';

/** Invented values for the unit tests. */
export function snapshot(fields: Partial<PanelSnapshot> = {}): PanelSnapshot {
  return {
    version: 1,
    seq: 4,
    now: 1000,
    session: {
      session_id: 's',
      host: 'agently',
      product_version: '0',
      started_at: 1,
      workspace_id: 'w',
      status: 'ready',
      message: ''
    },
    policy: {
      isolation: 'required',
      output_policy: 'framed',
      network_mode: 'disabled',
      approval_timeout_seconds: 120,
      scratch: 'tmpfs',
      wishes: []
    },
    sandbox: null,
    selection: null,
    inputs: [],
    approvals: [],
    grants: [],
    outputs: [],
    withheld: [],
    executions: [],
    timeline: [],
    ...fields
  };
}

export function event(fields: Partial<PanelEvent>): PanelEvent {
  return {
    version: 1,
    seq: 5,
    now: 1001,
    session: null,
    policy: null,
    sandbox: null,
    selection: null,
    inputs: null,
    approvals: null,
    grants: null,
    outputs: null,
    withheld: null,
    executions: null,
    timeline: null,
    ...fields
  };
}

export function run(
  id: string,
  fields: Partial<ExecutionView> = {}
): ExecutionView {
  return {
    execution_id: id,
    cell_id: `cell-${id}`,
    bundle_digest: '',
    form: 'session',
    language: 'python',
    count: 1,
    status: 'success',
    started_at: 1,
    seconds: 0.1,
    message: '',
    outputs: 0,
    refused: 0,
    withheld: 0,
    quiet: false,
    unsafe: false,
    ...fields
  };
}

export function line(number: number): TimelineEntry {
  return {
    number,
    at: number,
    kind: 'resource',
    name: 'ready',
    problem: false,
    subject: '',
    cell_id: '',
    text: ''
  };
}

export function question(fields: Partial<ApprovalView> = {}): ApprovalView {
  return {
    request_id: 'r1',
    nonce: 'n1',
    digest: 'sha256:d1',
    gate: 'network',
    subject: 'pypi.example:443',
    title: 'Give the sandbox network access',
    what: 'A cell asks for network access: pypi.example:443.',
    why: '',
    meaning: 'Code can reach it.',
    cell_id: 'cell-1',
    notebook: 'n.ipynb',
    created_at: 1,
    remaining: 90,
    allow_session: true,
    confirm: '',
    ...fields
  };
}

const fill = (text: string, args: unknown[]) =>
  text.replace(/%(\d)/g, (_, n) => String(args[Number(n) - 1]));

/** A bundle that knows the given translations and fills in places as JupyterLab's does. */
export function bundle(known: Record<string, string> = {}): TranslationBundle {
  return {
    __: (text: string, ...args: unknown[]) => fill(known[text] ?? text, args),
    _n: (one: string, many: string, n: number) => fill(n === 1 ? one : many, [n])
  } as unknown as TranslationBundle;
}
