import type { TranslationBundle } from '@jupyterlab/translation';
import { ENDS, REFUSALS, REPLIES } from './endtexts';
import { REMEDIES, SKIPS } from './providertexts';
import { Rule, say } from './saying';

/**
 * Sentences of the kernel in the words of the reader's language.
 *
 * What the kernel calls a check, an outcome or a reason is stable; the sentence for people is here. What is not known
 * here, for example of an outside provider, is shown in the kernel's own English words.
 */
/** What was tried or read. */
const CHECKS: Rule[] = [
  [/^(?:pid_namespace|own pid namespace)$/s, trans => trans.__('Its processes have a namespace of their own')],
  [/^(?:ipc_namespace|own ipc namespace)$/s, trans => trans.__('Shared memory and queues have a namespace of their own')],
  [/^(?:uts_namespace|own uts namespace)$/s, trans => trans.__('The host name has a namespace of its own')],
  [/^(?:mnt_namespace|own mnt namespace)$/s, trans => trans.__('Its mounts have a namespace of their own')],
  [/^(?:net_namespace|own net namespace)$/s, trans => trans.__('Its network has a namespace of its own')],
  [/^(?:uid_is_not_root|not the superuser)$/s, trans => trans.__('It does not run as root')],
  [/^(?:cap(eff|prm|inh|amb|bnd)_is_empty)$/s, (trans, m) => trans.__('No capability is left (%1)', m[1])],
  [/^(?:no capabilities)$/s, trans => trans.__('No capability is left')],
  [/^(?:no_new_privs|no new privileges by exec)$/s, trans => trans.__('Starting a program gives no new privileges')],
  [/^(?:seccomp_filter|a filter is in force)$/s, trans => trans.__('A system call filter is in force')],
  [/^(?:no_writable_host_mount|no folder of the host is writable)$/s, trans => trans.__('No folder of the host is writable')],
  [/^(?:few processes are visible)$/s, trans => trans.__('Only its own processes are visible')],
  [/^(?:a process of the host cannot be signalled)$/s, trans => trans.__('A process of the host cannot be signalled')],
  [/^(?:an abstract socket of the host cannot be reached)$/s, trans => trans.__('An abstract socket of the host cannot be reached')],
  [/^(?:a file of the host cannot be read)$/s, trans => trans.__('A file of the host cannot be read')],
  [/^(?:the host's keys are not shown)$/s, trans => trans.__("The host's keys are not shown")],
  [/^(?:a folder of the host cannot be written)$/s, trans => trans.__('A folder of the host cannot be written')],
  [/^(?:a socket file of the host cannot be reached)$/s, trans => trans.__('A socket file of the host cannot be reached')],
  [/^(?:(\/proc\/\S+) cannot be written)$/s, (trans, m) => trans.__('%1 cannot be written', m[1])],
  [/^(?:becoming uid 0 is refused)$/s, trans => trans.__('Becoming root is refused')],
  [/^(?:a user namespace is refused)$/s, trans => trans.__('A new user namespace is refused')],
  [/^(?:a socket of family (\w+) is refused)$/s, (trans, m) => trans.__('A socket of the family %1 is refused', m[1])],
  [/^(?:the host's loopback cannot be reached)$/s, trans => trans.__('The host’s loopback cannot be reached')],
  [/^(?:there is no route to anywhere)$/s, trans => trans.__('There is no route to anywhere')],
  [/^(?:a granted name answers through the relay)$/s, trans => trans.__('A granted name answers through the relay')],
  [/^(?:the relay refuses a name that was not granted)$/s, trans => trans.__('The relay refuses a name that was not granted')],
  [/^(?:a connection past the relay fails)$/s, trans => trans.__('A connection past the relay fails')],
  [/^(?:it cannot open the network for single hosts)$/s, trans => trans.__('it cannot open the network for single hosts')],
  [/^(?:there are no interfaces but loopback)$/s, trans => trans.__('There is no interface but loopback')],
  [/^(?:host's loopback listener saw no connection)$/s, trans => trans.__('The host’s listener on its loopback saw no connection')],
  [/^(?:host's abstract socket saw no connection)$/s, trans => trans.__('The host’s abstract socket saw no connection')],
  [/^(?:host's socket file saw no connection)$/s, trans => trans.__('The host’s socket file saw no connection')],
  [/^(?:host's writable canary folder is unchanged)$/s, trans => trans.__('The folder of the host that was left open is unchanged')],
  [/^(?:inside attempts)$/s, trans => trans.__('Attempts from inside were reported')],
  [/^(?:no isolation is applied)$/s, trans => trans.__('No isolation is applied')],
  [/^(?:the session's kernel is gVisor's)$/s, trans => trans.__('The session’s kernel is gVisor’s')],
  [/^(?:gVisor's kernel does not run as root)$/s, trans => trans.__('gVisor’s kernel does not run as root')],
  [/^(?:gVisor's kernel has no_new_privs)$/s, trans => trans.__('gVisor’s kernel can get no new privileges')],
  [/^(?:gVisor's kernel is behind a filter)$/s, trans => trans.__('gVisor’s kernel is behind a system call filter')],
  [/^(?:gVisor's kernel has its own mounts)$/s, trans => trans.__('gVisor’s kernel has mounts of its own')],
  [/^(?:gVisor's kernel has no writable mount)$/s, trans => trans.__('gVisor’s kernel has no writable mount of the host')],
  [/^(?:gVisor's kernel has its own ipc)$/s, trans => trans.__('gVisor’s kernel has shared memory and queues of its own')],
  [/^(?:gVisor's kernel has its own network)$/s, trans => trans.__('gVisor’s kernel has a network of its own')],
  [/^(?:metadata of the host's files is hidden)$/s, trans => trans.__('Names and metadata of the host’s files are hidden')],
  [/^(?:signals stay inside)$/s, trans => trans.__('Signals stay inside')],
  [/^(?:process)$/s, trans => trans.__('The guest’s process could be looked at')],
  [/^(?:processes have a namespace of their own)$/s, trans => trans.__('Its processes have a namespace of their own')],
  [/^(?:system calls are filtered)$/s, trans => trans.__('System calls are filtered')],
  [/^(?:(\w+(?: TIOCSTI)?) is refused)$/s, (trans, m) => trans.__('The system call %1 is refused', m[1])]
];

/** What came of it. */
const DETAILS: Rule[] = [
  [/^(?:its own)$/s, trans => trans.__('its own')],
  [/^(?:the host's)$/s, trans => trans.__('the host’s own')],
  [/^(?:inode (\d+))$/s, (trans, m) => trans.__('inode %1', m[1])],
  [/^(?:could not be read: (.+))$/s, (trans, m) => trans.__('could not be read: %1', m[1])],
  [/^(?:could not be tried: (.+))$/s, (trans, m) => trans.__('could not be tried: %1', m[1])],
  [/^(?:the mount table could not be read)$/s, trans => trans.__('the mount table could not be read')],
  [/^(?:uids? ([\d ]+))$/s, (trans, m) => trans.__('user id %1', m[1])],
  [/^(?:uid is 0 now)$/s, trans => trans.__('it became root')],
  [/^(?:(?:seccomp )?mode (\w+))$/s, (trans, m) => trans.__('filter mode %1', m[1])],
  [/^(?:mode (\w+), (\w+) filter\(s\))$/s, (trans, m) => trans.__('filter mode %1, filters: %2', m[1], m[2])],
  [/^(?:(\d+) mounts)$/s, (trans, m) => trans.__('mounts: %1', m[1])],
  [/^(?:(\d+) mounts; granted on the host's disk: (.+))$/s, (trans, m) => trans.__('mounts: %1; granted on the host’s disk: %2', m[1], m[2])],
  [/^(?:writable: (.+))$/s, (trans, m) => trans.__('writable: %1', m[1])],
  [/^(?:(\d+) keys)$/s, (trans, m) => trans.__('keys: %1', m[1])],
  [/^(?:(\d+) processes)$/s, (trans, m) => trans.__('processes: %1', m[1])],
  [/^(?:(\d+) new entries)$/s, (trans, m) => trans.__('new entries: %1', m[1])],
  [/^(?:no such process)$/s, trans => trans.__('there is no such process')],
  [/^(?:refused)$/s, trans => trans.__('it was refused')],
  [/^(?:the number belongs to a process of this sandbox)$/s, trans => trans.__('the number belongs to a process of this sandbox')],
  [/^(?:process (\d+) accepts signals)$/s, (trans, m) => trans.__('process %1 accepts signals', m[1])],
  [/^(?:connected)$/s, trans => trans.__('it was connected')],
  [/^(?:opened)$/s, trans => trans.__('it was opened')],
  [/^(?:made)$/s, trans => trans.__('it was made')],
  [/^(?:a file was made)$/s, trans => trans.__('a file was made')],
  [/^(?:it succeeded)$/s, trans => trans.__('it succeeded')],
  [/^(?:a route exists)$/s, trans => trans.__('a route exists')],
  [/^(?:Internet sockets are refused: (\w+))$/s, (trans, m) => trans.__('Internet sockets are refused: %1', m[1])],
  [/^(?:effective (\w+), permitted (\w+))$/s, (trans, m) => trans.__('effective %1, permitted %2', m[1], m[2])],
  [/^(?:Operation not permitted)$/s, trans => trans.__('it is not permitted')],
  [/^(?:the guest reported none)$/s, trans => trans.__('the guest reported none')],
  [/^(?:the trying process did not answer)$/s, trans => trans.__('the trying process did not answer')],
  [/^(?:the guest's process is gone)$/s, trans => trans.__('the guest’s process is gone')],
  [/^(?:its program: (.*))$/s, (trans, m) => trans.__('its program: %1', m[1])],
  [/^(?:its command: (.*))$/s, (trans, m) => trans.__('its command: %1', m[1])],
  [/^(?:Landlock does not mediate stat, chmod and connecting to socket files)$/s, trans => trans.__('Landlock does not mediate stat, chmod and connecting to socket files')],
  [/^(?:Landlock version (\d+) knows no scopes)$/s, (trans, m) => trans.__('Landlock version %1 knows no scopes', m[1])],
  [/^(?:No isolation: the code runs with all the rights of the user who started the kernel\.)$/s, trans => trans.__('No isolation: the code runs with all the rights of the user who started the kernel.')]
];

/** Why something was not shown, and how it could be. */
const REASONS: Rule[] = [
  [/^(?:JavaScript that wanted to run in the page was withheld\.)$/s, trans => trans.__('JavaScript that wanted to run in the page was withheld.')],
  [/^(?:Output of type (\S+) was withheld: its renderer may run code in the page\.)$/s, (trans, m) => trans.__('Output of type %1 was withheld: its renderer may run code in the page.', m[1])],
  [/^(?:A widget of (.+) was withheld: it brings code of its own into the page\.)$/s, (trans, m) => trans.__('A widget of %1 was withheld: it brings code of its own into the page.', m[1])],
  [/^(?:The output refers to images or media of other hosts, and the sandbox has no network\.)$/s, trans => trans.__('The output refers to images or media of other hosts, and the sandbox has no network.')],
  [/^(?:An SVG drawing is shown without its active parts: (.+)\.)$/s, (trans, m) => trans.__('An SVG drawing is shown without its active parts: %1.', m[1])],
  [/^(?:The data given as (\S+) are not such an image\.)$/s, (trans, m) => trans.__('The data given as %1 are not such an image.', m[1])],
  [/^(?:A widget that is not open in this session cannot be shown\.)$/s, trans => trans.__('A widget that is not open in this session cannot be shown.')],
  [/^(?:A chart was withheld: (.+)\.)$/s, (trans, m) => trans.__('A chart was withheld: %1.', m[1])],
  [/^(?:An output of (\d+) MIME types was withheld: (\d+) are the most\.)$/s, (trans, m) => trans.__('An output of %1 MIME types was withheld: %2 are the most.', m[1], m[2])],
  [/^(?:An output of (\d+) MiB was withheld: (\d+) MiB is the most\. Write it below output\/\.)$/s, (trans, m) => trans.__('An output of %1 MiB was withheld: %2 MiB is the most. Write it below output/.', m[1], m[2])],
  [/^(?:Further outputs of this cell were withheld after (\d+)\. Use clear_output\(\)\.)$/s, (trans, m) => trans.__('Further outputs of this cell were withheld after %1. Use clear_output().', m[1])],
  [/^(?:A widget message was dropped: its binary data exceed (\d+) MiB\.)$/s, (trans, m) => trans.__('A widget message was dropped: its binary data exceed %1 MiB.', m[1])],
  [/^(?:A widget with an id that is in use or not allowed was refused\.)$/s, trans => trans.__('A widget with an id that is in use or not allowed was refused.')],
  [/^(?:A widget was refused: (\d+) are open\. Close some with widget\.close\(\) or restart\.)$/s, (trans, m) => trans.__('A widget was refused: %1 are open. Close some with widget.close() or restart.', m[1])],
  [/^(?:A widget without a state was refused\.)$/s, trans => trans.__('A widget without a state was refused.')],
  [/^(?:To allow it in this session: (.+))$/s, (trans, m) => trans.__('To allow it in this session: %1', m[1])],
  [/^A (.+) of (.+) MiB was withheld: (.+) MiB and (.+) tags, links or macros are the most\.$/s, (trans, m) => trans.__('A %1 of %2 MiB was withheld: %3 MiB and %4 tags, links or macros are the most.', m[1], m[2], m[3], m[4])],
  [/^Write it below output\/\.$/s, trans => trans.__('Write it below output/.')],
  [/^The code that the cell wrote into a new cell is commented out\.$/s, trans => trans.__('The code that the cell wrote into a new cell is commented out.')],
  [/^A comm to (.+) was refused: code of the page that nobody has looked at would take it\.$/s, (trans, m) => trans.__('A comm to %1 was refused: code of the page that nobody has looked at would take it.', m[1])],
  [/^A comm to (.+) was refused: the target or the id belongs to the kernel or to another comm\.$/s, (trans, m) => trans.__('A comm to %1 was refused: the target or the id belongs to the kernel or to another comm.', m[1])]
];

/** What a question says about its subject, one fact in a line. */
const FACTS: Rule[] = [
  [/^ports: 80 and 443$/s, trans => trans.__('ports: 80 and 443')],
  [/^ports: as named, else 80 and 443$/s, trans => trans.__('ports: as named, else 80 and 443')],
  [/^kind: file$/s, trans => trans.__('kind: file')],
  [/^kind: folder with everything in it$/s, trans => trans.__('kind: folder with everything in it')],
  [/^size in bytes: (\d+)$/s, (trans, m) => trans.__('size in bytes: %1', m[1])],
  [/^number of files: (\d+)$/s, (trans, m) => trans.__('number of files: %1', m[1])],
  [/^files: (.+)$/s, (trans, m) => trans.__('files: %1', m[1])],
  [/^name inside: (.+)$/s, (trans, m) => trans.__('name inside: %1', m[1])],
  [/^leads to: (.+)$/s, (trans, m) => trans.__('leads to: %1', m[1])]
];

/** Values among the facts of a mechanism. */
const VALUES: Rule[] = [
  [/^uid (\d+) of the host$/s, (trans, m) => trans.__('user id %1 of this machine', m[1])],
  [/^user namespace$/s, trans => trans.__('user namespace')],
  [/^the user's own$/s, trans => trans.__('your own user')]
];

/** What holds a limit, and how well. */
const LIMITS: Rule[] = [
  [/^none$/s, trans => trans.__('nothing')],
  [/^watchdog$/s, trans => trans.__('a watchdog')],
  [/^engine$/s, trans => trans.__('the engine')],
  [/^counted over all containers of this user of the engine together$/s, trans => trans.__('counted over all containers of this user of the engine together')],
  [/^counted every tenth of a second: what is taken between two looks goes beyond it; files and sockets that are on their way between processes are not seen$/s, trans => trans.__('counted every tenth of a second: what is taken between two looks goes beyond it; files and sockets that are on their way between processes are not seen')],
  [/^counted every tenth of a second, near the limit more often: what is written between two looks goes beyond it$/s, trans => trans.__('counted every tenth of a second, near the limit more often: what is written between two looks goes beyond it')]
];

export const checkText = (trans: TranslationBundle, text: string) =>
  say(trans, CHECKS, text);

export const detailText = (trans: TranslationBundle, text: string) =>
  say(trans, DETAILS, text);

export const reasonText = (trans: TranslationBundle, text: string) =>
  say(trans, REASONS, text);

export const skipText = (trans: TranslationBundle, text: string) =>
  say(trans, SKIPS, text);

export const refusalText = (trans: TranslationBundle, text: string) =>
  say(trans, REFUSALS, text);

export const factText = (trans: TranslationBundle, text: string) =>
  say(trans, FACTS, text);

export const endText = (trans: TranslationBundle, text: string) =>
  say(trans, ENDS, text);

export const valueText = (trans: TranslationBundle, text: string) =>
  say(trans, VALUES, text);

export const remedyText = (trans: TranslationBundle, text: string) =>
  say(trans, REMEDIES, text);

/** Name of a fact of the mechanism. */
export function mechanismName(trans: TranslationBundle, name: string, fallback: string): string {
  switch (name) {
    case 'mechanism':
      return trans.__('Mechanism');
    case 'version':
      return trans.__('Version');
    case 'binary':
      return trans.__('Program');
    case 'binary_sha256':
      return trans.__('Program’s SHA-256');
    case 'identity':
      return trans.__('Runs as');
    case 'kernel':
      return trans.__('System kernel');
    case 'scratch':
      return trans.__('Scratch space is');
    case 'control_groups':
      return trans.__('Control groups');
    case 'stage1':
      return trans.__('First program');
    case 'platform':
      return trans.__('Platform');
    case 'python':
      return trans.__('Python');
    case 'warning':
      return trans.__('Warning');
    case 'unsafe':
      return trans.__('Unsafe');
    case 'system':
      return trans.__('System');
    case 'user_namespace':
      return trans.__('User namespace');
    case 'seccomp_rules':
      return trans.__('Filter rules');
    default:
      return fallback;
  }
}

export const replyText = (trans: TranslationBundle, text: string) =>
  say(trans, REPLIES, text);

export const limitText = (trans: TranslationBundle, text: string) =>
  say(trans, LIMITS, text);
