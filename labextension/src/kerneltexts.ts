import type { TranslationBundle } from '@jupyterlab/translation';

/**
 * Sentences of the kernel in the words of the reader's language.
 *
 * What the kernel calls a check, an outcome or a reason is stable; the sentence for people is here. What is not known
 * here, for example of an outside provider, is shown in the kernel's own English words.
 */
type Rule = [RegExp, (trans: TranslationBundle, m: RegExpExecArray) => string];

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
  [/^(?:A comm to (.+) was refused: a cell may only open widgets\.)$/s, (trans, m) => trans.__('A comm to %1 was refused: a cell may only open widgets.', m[1])],
  [/^(?:A widget with an id that is in use or not allowed was refused\.)$/s, trans => trans.__('A widget with an id that is in use or not allowed was refused.')],
  [/^(?:A widget was refused: (\d+) are open\. Close some with widget\.close\(\) or restart\.)$/s, (trans, m) => trans.__('A widget was refused: %1 are open. Close some with widget.close() or restart.', m[1])],
  [/^(?:A widget without a state was refused\.)$/s, trans => trans.__('A widget without a state was refused.')],
  [/^(?:To allow it in this session: (.+))$/s, (trans, m) => trans.__('To allow it in this session: %1', m[1])]
];

/** Why a candidate was not taken. */
const SKIPS: Rule[] = [
  [/^(?:it is not available)$/s, trans => trans.__('it is not available')],
  [/^(?:No container engine answers at (.+)\.)$/s, (trans, m) => trans.__('No container engine answers at %1.', m[1])],
  [/^(?:Seatbelt is part of macOS; this is (.+)\.)$/s, (trans, m) => trans.__('Seatbelt is part of macOS; this is %1.', m[1])],
  [/^(?:Landlock works on Linux only; this is (.+)\.)$/s, (trans, m) => trans.__('Landlock works on Linux only; this is %1.', m[1])],
  [/^(?:This kernel has no Landlock, or it is switched off\.)$/s, trans => trans.__('This kernel has no Landlock, or it is switched off.')],
  [/^(?:As root the guest takes another user id, and that one cannot enter (.+), where the interpreter (.+) lies\.)$/s, (trans, m) => trans.__('As root the guest takes another user id, and that one cannot enter %1, where the interpreter %2 lies.', m[1], m[2])],
  [/^(?:it does not run (\w+))$/s, (trans, m) => trans.__('it does not run %1', m[1])],
  [/^(?:(\S+) was not found there \(wanted: (.+)\))$/s, (trans, m) => trans.__('%1 was not found there (wanted: %2)', m[1], m[2])],
  [/^(?:(\S+) is (\S+) \(wanted: (.+)\))$/s, (trans, m) => trans.__('%1 is %2 there (wanted: %3)', m[1], m[2], m[3])],
  [/^(?:it has no (\S+) access to the workspace)$/s, (trans, m) => trans.__('it has no %1 access to the workspace', m[1])],
  [/^(?:it isolates nothing, and isolation is required)$/s, trans => trans.__('it isolates nothing, and isolation is required')],
  [/^(?:it isolates nothing, and unsafe_fallback is not set)$/s, trans => trans.__('it isolates nothing, and unsafe_fallback is not set')],
  [/^(?:without isolation only snapshot grants are given)$/s, trans => trans.__('without isolation only snapshot grants are given')],
  [/^(?:the network is disabled by policy, but its network is (\w+))$/s, (trans, m) => trans.__('the network is disabled by policy, but its network is %1', m[1])],
  [/^(?:it isolates nothing, and another provider does)$/s, trans => trans.__('it isolates nothing, and another provider does')],
  [/^(?:running without isolation is not authorised \(it was denied\))$/s, trans => trans.__('running without isolation was denied')],
  [/^(?:running without isolation is not authorised \(nobody answered in time\))$/s, trans => trans.__('nobody said in time whether code may run without isolation')],
  [/^(?:running without isolation is not authorised \(there is nobody who could be asked\))$/s, trans => trans.__('nobody could be asked whether code may run without isolation')],
  [/^(?:running without isolation is not authorised \((.+)\))$/s, (trans, m) => trans.__('running without isolation is not authorised (%1)', m[1])],
  [/^(?:its probe did not answer within ([\d.]+) s)$/s, (trans, m) => trans.__('its probe did not answer within %1 s', m[1])],
  [/^(?:it did not start within ([\d.]+) s)$/s, (trans, m) => trans.__('it did not start within %1 s', m[1])],
  [/^(?:it did not start: (.+))$/s, (trans, m) => trans.__('it did not start: %1', m[1])],
  [/^(?:its probe failed: (.+))$/s, (trans, m) => trans.__('its probe failed: %1', m[1])]
];

/** What would change that. */
const REMEDIES: Rule[] = [
  [/^(?:use bubblewrap, runsc or docker here)$/s, trans => trans.__('use bubblewrap, runsc or docker here')],
  [/^(?:run Jupyter as an ordinary user, or name an interpreter that everybody may run with the provider's `python`, such as (.+))$/s, (trans, m) => trans.__('run Jupyter as an ordinary user, or name an interpreter that everybody may run with the provider’s `python`, such as %1', m[1])],
  [/^(?:start it (\(.+\)), or name another one with the provider's `host`)$/s, (trans, m) => trans.__('start it %1, or name another one with the provider’s `host`', m[1])],
  [/^(?:choose a provider that runs (\w+))$/s, (trans, m) => trans.__('choose a provider that runs %1', m[1])],
  [/^(?:provide (.+) where the code runs, or choose a provider that has it)$/s, (trans, m) => trans.__('provide %1 where the code runs, or choose a provider that has it', m[1])],
  [/^(?:ask for one of: (.+))$/s, (trans, m) => trans.__('ask for one of: %1', m[1])],
  [/^(?:install an isolating provider; `agently-kernel doctor` says how)$/s, trans => trans.__('install an isolating provider; `agently-kernel doctor` says how')],
  [/^(?:use a provider that restricts this, or set isolation='preferred' to accept less)$/s, trans => trans.__('use a provider that restricts this, or set isolation=preferred to accept less')],
  [/^(?:set unsafe_fallback=True with isolation='preferred' or 'none' to accept running without isolation)$/s, trans => trans.__('set unsafe_fallback=True with isolation preferred or none to accept running without isolation')],
  [/^(?:use a provider that blocks the network, or set network_mode='enabled')$/s, trans => trans.__('use a provider that blocks the network, or set network_mode=enabled')],
  [/^(?:correct the candidate's config)$/s, trans => trans.__('correct the candidate’s config')]
];

/** Why a file was not collected. */
const REFUSALS: Rule[] = [
  [/^(?:.+ was not taken: there is no such file)$/s, trans => trans.__('It was declared and is not there.')],
  [/^(?:.+ was not taken: it is a symbolic link; links are not followed out of a sandbox)$/s, trans => trans.__('It is a link; links are not followed out of a sandbox.')],
  [/^(?:.+ was not taken: a symbolic link stands in its path; links are not followed out of a sandbox)$/s, trans => trans.__('A link stands in its path; links are not followed out of a sandbox.')],
  [/^(?:.+ was not taken: it has (\d+) hard links; copy the file instead of linking it)$/s, (trans, m) => trans.__('It has %1 hard links; copy the file instead of linking it.', m[1])],
  [/^(?:.+ was not taken: it is (.+), not a regular file)$/s, (trans, m) => trans.__('It is not a regular file (%1).', m[1])],
  [/^(?:.+ was not taken: another file system is mounted in its path)$/s, trans => trans.__('Another file system is mounted in its path.')],
  [/^(?:.+ was not taken: it has ([\d,]+) bytes; the limit for one file is ([\d,]+) bytes)$/s, (trans, m) => trans.__('It has %1 bytes; the limit for one file is %2.', m[1], m[2])],
  [/^(?:.+ was not taken: (\d+) files were collected already, which is the limit; ([\d,]+) (?:was|were) left out)$/s, (trans, m) => trans.__('%1 files were collected already, which is the limit; left out: %2.', m[1], m[2])],
  [/^(?:.+ was not taken: (\d+) files were collected already, which is the limit)$/s, (trans, m) => trans.__('%1 files were collected already, which is the limit.', m[1])],
  [/^(?:.+ was not taken: with its ([\d,]+) bytes all files exceed the limit of ([\d,]+) bytes together)$/s, (trans, m) => trans.__('With its %1 bytes all outputs together exceed %2.', m[1], m[2])],
  [/^(?:.+ was not taken: its folders were renamed while it was being read)$/s, trans => trans.__('Its folders were renamed while it was being read.')],
  [/^(?:.+ was not taken: it was (?:written to|shortened) while it was being read)$/s, trans => trans.__('It was changed while it was being read.')],
  [/^(?:.+ was not taken: its name could deceive a reader, or is not in the usual \(NFC\) form; rename it)$/s, trans => trans.__('Its name could deceive a reader, or is not in the usual (NFC) form; rename it.')],
  [/^(?:.+ was not taken: its path is too long)$/s, trans => trans.__('Its path is too long.')],
  [/^(?:.+ was not taken: it cannot be read: (.+))$/s, (trans, m) => trans.__('It cannot be read: %1', m[1])]
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

/** How an execution ended, and the small print of the timeline. */
const ENDS: Rule[] = [
  [/^You stopped the cell\.$/s, trans => trans.__('You stopped the cell.')],
  [/^The cell raised (\w+)\.$/s, (trans, m) => trans.__('The cell raised %1.', m[1])],
  [/^panel$/s, trans => trans.__('in the panel')],
  [/^input box$/s, trans => trans.__('in the input box')],
  [/^remembered$/s, trans => trans.__('allowed before')],
  [/^configuration$/s, trans => trans.__('by the configuration')],
  [/^deadline$/s, trans => trans.__('the time was over')],
  [/^withdrawn$/s, trans => trans.__('withdrawn')],
  [/^booting$/s, trans => trans.__('it boots')],
  [/^provider_probe$/s, trans => trans.__('examining the provider')],
  [/^provider_selected$/s, trans => trans.__('the provider is chosen')]
];

/** Values among the facts of a mechanism. */
const VALUES: Rule[] = [
  [/^uid (\d+) of the host$/s, (trans, m) => trans.__('user id %1 of this machine', m[1])],
  [/^user namespace$/s, trans => trans.__('user namespace')],
  [/^the user's own$/s, trans => trans.__('your own user')]
];

function say(trans: TranslationBundle, rules: Rule[], text: string): string {
  for (const [pattern, words] of rules) {
    const found = pattern.exec(text);
    if (found) {
      return words(trans, found);
    }
  }
  return text;
}

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
