import type { TranslationBundle } from '@jupyterlab/translation';
import type {
  AxisView,
  ExecutionView,
  LimitView,
  SandboxView,
  SkippedView,
  TimelineEntry,
  WishView
} from './protocol';
import { bytes } from './format';

function isolationName(trans: TranslationBundle, value: string): string {
  switch (value) {
    case 'required':
      return trans.__('isolation required');
    case 'preferred':
      return trans.__('isolation preferred');
    default:
      return trans.__('no isolation demanded');
  }
}

/** What to say of a setting that does not hold as it was wished; empty when it holds. */
export function wishText(trans: TranslationBundle, wish: WishView): string {
  switch (wish.outcome) {
    case 'applied':
      return '';
    case 'weaker':
      return trans.__(
        'Your setting “%1” is weaker than the kernel’s configuration; “%2” holds.',
        isolationName(trans, wish.wished),
        isolationName(trans, wish.effective)
      );
    case 'longer':
      return trans.__(
        'Your setting of %1 seconds for an answer is longer than the kernel’s configuration allows; %2 seconds hold.',
        wish.wished,
        wish.effective
      );
    case 'next_sandbox':
      return trans.__(
        'Your setting “%1” holds from the next sandbox on. This one was opened before; restart the sandbox to have it now.',
        isolationName(trans, wish.wished)
      );
  }
}

/** Name of an isolation axis, for people. */
export function axisName(trans: TranslationBundle, axis: AxisView['axis']): string {
  switch (axis) {
    case 'process_contained':
      return trans.__('Processes contained');
    case 'host_filesystem_restricted':
      return trans.__('Your files out of reach');
    case 'privilege_escalation_blocked':
      return trans.__('Privileges cannot grow');
    case 'syscalls_restricted':
      return trans.__('System calls filtered');
    case 'network':
      return trans.__('Network blocked');
  }
}

/** The three values of an observation, by a word and by a shape. */
export function verdict(
  trans: TranslationBundle,
  value: boolean | null
): { word: string; mark: string; tone: 'ok' | 'bad' | 'unknown' } {
  if (value === true) {
    return { word: trans.__('holds'), mark: '✓', tone: 'ok' };
  }
  if (value === false) {
    return { word: trans.__('does not hold'), mark: '✗', tone: 'bad' };
  }
  return { word: trans.__('not observed'), mark: '?', tone: 'unknown' };
}

/** How many of the four axes were observed to hold. */
export function score(sandbox: SandboxView): number {
  return sandbox.axes.filter(axis => axis.value === true).length;
}

export function safetyClass(
  trans: TranslationBundle,
  value: SandboxView['safety_class']
): string {
  switch (value) {
    case 'isolated':
      return trans.__('isolated');
    case 'constrained':
      return trans.__('constrained (partly isolated)');
    case 'trusted_local':
      return trans.__('trusted local (no isolation)');
  }
}

export function network(
  trans: TranslationBundle,
  value: SandboxView['network'],
  hosts: string[] = []
): string {
  if (hosts.length) {
    return trans.__('only %1', hosts.join(', '));
  }
  switch (value) {
    case 'none':
      return trans.__('off');
    case 'inherited':
      return trans.__('open (as your own)');
    case 'filtered':
      return trans.__('filtered');
    case 'unknown':
      return trans.__('not observed');
  }
}

export function limitName(trans: TranslationBundle, name: string): string {
  const names: Record<string, string> = {
    memory: trans.__('Memory'),
    processes: trans.__('Processes'),
    file_size: trans.__('File size'),
    cpu: trans.__('CPUs'),
    scratch_bytes: trans.__('Scratch space'),
    output_bytes: trans.__('Output space'),
    inodes: trans.__('Files'),
    open_files: trans.__('Open files')
  };
  return names[name] ?? name;
}

export function limitValue(trans: TranslationBundle, limit: LimitView): string {
  if (limit.limit === null) {
    return trans.__('no limit');
  }
  const isBytes = ['memory', 'file_size', 'scratch_bytes', 'output_bytes'];
  return isBytes.includes(limit.name)
    ? bytes(limit.limit)
    : limit.limit.toLocaleString();
}

export function skipCode(
  trans: TranslationBundle,
  code: SkippedView['code']
): string {
  const words: Record<string, string> = {
    unregistered: trans.__('unknown provider'),
    unavailable: trans.__('not available'),
    probe_failed: trans.__('could not be examined'),
    kind: trans.__('other kind'),
    language: trans.__('language missing'),
    toolchain: trans.__('tool missing'),
    workspace_access: trans.__('access mode'),
    isolation: trans.__('isolation not sufficient'),
    network: trans.__('network'),
    limits: trans.__('limits'),
    trusted_local_refused: trans.__('never implicit'),
    approval: trans.__('not approved'),
    launch_failed: trans.__('did not start'),
    config_invalid: trans.__('bad configuration'),
    reprobe_changed: trans.__('facts changed')
  };
  return words[code] ?? code;
}

export function executionStatus(
  trans: TranslationBundle,
  status: ExecutionView['status']
): { word: string; mark: string; tone: 'ok' | 'bad' | 'unknown' | 'run' } {
  switch (status) {
    case 'running':
      return { word: trans.__('running'), mark: '…', tone: 'run' };
    case 'success':
      return { word: trans.__('done'), mark: '✓', tone: 'ok' };
    case 'error':
      return { word: trans.__('error'), mark: '✗', tone: 'bad' };
    case 'timed_out':
      return { word: trans.__('time limit'), mark: '✗', tone: 'bad' };
    case 'cancelled':
      return { word: trans.__('stopped'), mark: '■', tone: 'unknown' };
    case 'died':
      return { word: trans.__('died'), mark: '✗', tone: 'bad' };
    case 'blocked':
      return { word: trans.__('not run'), mark: '⊘', tone: 'bad' };
  }
}

/** One line of the timeline, in words. */
export function eventName(
  trans: TranslationBundle,
  entry: TimelineEntry
): string {
  const words: Record<string, string> = {
    'resource.declared': trans.__('sandbox wanted'),
    'resource.approval_required': trans.__('approval needed'),
    'resource.ensuring': trans.__('choosing a provider'),
    'resource.probed': trans.__('provider examined'),
    'resource.progress': trans.__('in progress'),
    'resource.ready': trans.__('sandbox ready'),
    'resource.unhealthy': trans.__('sandbox unhealthy'),
    'resource.releasing': trans.__('closing the sandbox'),
    'resource.released': trans.__('sandbox closed'),
    'resource.failed': trans.__('sandbox failed'),
    'execution.started': trans.__('cell started'),
    'execution.success': trans.__('cell done'),
    'execution.error': trans.__('cell ended with an error'),
    'execution.timed_out': trans.__('cell reached its time limit'),
    'execution.cancelled': trans.__('cell stopped'),
    'execution.died': trans.__('interpreter or sandbox died'),
    'execution.blocked': trans.__('cell was not run'),
    'approval.asked': trans.__('approval asked'),
    'approval.approved_once': trans.__('allowed once'),
    'approval.approved_session': trans.__('allowed for this session'),
    'approval.denied': trans.__('denied'),
    'approval.timed_out': trans.__('nobody answered in time'),
    'approval.no_channel': trans.__('nobody could be asked'),
    'approval.cancelled': trans.__('question withdrawn'),
    'approval.revoked': trans.__('approval taken back')
  };
  return words[`${entry.kind}.${entry.name}`] ?? entry.name;
}

export function gateName(trans: TranslationBundle, gate: string): string {
  const words: Record<string, string> = {
    ensure: trans.__('start a sandbox'),
    network: trans.__('network'),
    trusted_local: trans.__('no isolation'),
    image_pull: trans.__('container image'),
    input: trans.__('read a file'),
    sensitive_input: trans.__('read a sensitive place'),
    save_output: trans.__('save a file'),
    replace_file: trans.__('replace a file'),
    dependencies: trans.__('install packages'),
    active_output: trans.__('active output'),
    set_next_input: trans.__('put code into a new cell'),
    limits: trans.__('raise a limit'),
    isolation: trans.__('weaker isolation')
  };
  return words[gate] ?? gate;
}
