/** How runs and questions end, and what a panel is told after it asked for something. */
import type { TranslationBundle } from '@jupyterlab/translation';
import { Rule, say } from './saying';

/** Why something ended, and what ended it. */
const CAUSES: Rule[] = [
  [/^interpreter$/s, trans => trans.__('interpreter')],
  [/^sandbox$/s, trans => trans.__('sandbox')],
  [/^it broke the protocol \((.+)\)$/s, (trans, m) => trans.__('it broke the protocol (%1)', m[1])],
  [/^the cell ran past its time limit and did not react to the interrupt$/s, trans => trans.__('the cell ran past its time limit and did not react to the interrupt')],
  [/^you stopped it$/s, trans => trans.__('you stopped it')],
  [/^it used up its processor time$/s, trans => trans.__('it used up its processor time')],
  [/^a completion or inspection went on for (.+) s after your Stop$/s, (trans, m) => trans.__('a completion or inspection went on for %1 s after your Stop', m[1])],
  [/^it kept leaving the (.+) processor\(s\) it may use$/s, (trans, m) => trans.__('it kept leaving the processors that it may use (%1)', m[1])],
  [/^its scratch folder passed (.+) MiB$/s, (trans, m) => trans.__('its scratch folder passed %1 MiB', m[1])],
  [/^its scratch folder holds more than (.+) files and folders$/s, (trans, m) => trans.__('its scratch folder holds more than %1 files and folders', m[1])],
  [/^(.+) holds more than (.+) files and folders$/s, (trans, m) => trans.__('%1 holds more than %2 files and folders', m[1], m[2])],
  [/^the kernel ended a process there$/s, trans => trans.__('the kernel ended a process there')],
  [/^a crash in native code$/s, trans => trans.__('a crash in native code')],
  [/^native code gave up$/s, trans => trans.__('native code gave up')],
  [/^a crash in native code, or shared memory or a mapped file that ran out of space$/s, trans => trans.__('a crash in native code, or shared memory or a mapped file that ran out of space')],
  [/^native code that this processor cannot run$/s, trans => trans.__('native code that this processor cannot run')],
  [/^an arithmetic fault in native code$/s, trans => trans.__('an arithmetic fault in native code')],
  [/^a forbidden system call$/s, trans => trans.__('a forbidden system call')],
  [/^killed; often for want of memory$/s, trans => trans.__('killed; often for want of memory')],
  [/^a program on this machine, or the code itself, asked it to end$/s, trans => trans.__('a program on this machine, or the code itself, asked it to end')],
  [/^signal (.+)$/s, (trans, m) => trans.__('signal %1', m[1])]
];

/** How a question ended that was not answered with yes, and why. */
const ENDINGS: Rule[] = [
  [/^was not answered in time$/s, trans => trans.__('was not answered in time')],
  [/^could not be asked$/s, trans => trans.__('could not be asked')],
  [/^was cancelled$/s, trans => trans.__('was cancelled')],
  [/^was denied in the (.+)$/s, (trans, m) => trans.__('was denied (%1)', say(trans, ENDS, m[1]))],
  [/^was denied by your configuration$/s, trans => trans.__('was denied by your configuration')],
  [/^was denied by the approval handler (.+)$/s, (trans, m) => trans.__('was denied by the approval handler %1', m[1])],
  [/^nobody answered within (.+) seconds$/s, (trans, m) => trans.__('nobody answered within %1 seconds', m[1])],
  [/^there is nobody who could be asked$/s, trans => trans.__('there is nobody who could be asked')],
  [/^approval_mode is 'never'$/s, trans => trans.__('approval_mode is set to never')],
  [/^the approval handler (.+) returned (.+) instead of an ApprovalOutcome$/s, (trans, m) => trans.__('the approval handler %1 returned %2 instead of an ApprovalOutcome', m[1], m[2])],
  [/^the approval handler (.+) raised (.+)$/s, (trans, m) => trans.__('the approval handler %1 raised %2', m[1], m[2])],
  [/^the panel that showed it was closed, and the cell may not use the input box$/s, trans => trans.__('the panel that showed it was closed, and the cell may not use the input box')],
  [/^a yes must be the words and the code that the question shows, such as 'allow 1234'$/s, trans => trans.__('a yes must be the words and the code that the question shows, such as allow 1234')]
];

/** A gate that stayed closed: “title” (gate: subject) how it ended, why. */
function refusal(trans: TranslationBundle, m: RegExpExecArray): string {
  const [, title, gate, subject, ended, why] = m;
  const how = say(trans, ENDINGS, ended);
  const whole = why ? trans.__('%1: %2', how, say(trans, ENDINGS, why)) : how;
  return trans.__('“%1” (%2: %3) %4; nothing was run for it.', trans.__(title), gate, subject, whole);
}

/** The signal that ended something, with what it tells. */
function signal(trans: TranslationBundle, m: RegExpExecArray): string {
  const name = say(trans, CAUSES, m[1]);
  return m[2] ? `${name} (${say(trans, CAUSES, m[2])})` : name;
}

/** How an execution ended, and the small print of the timeline. */
export const ENDS: Rule[] = [
  [/^You stopped the cell\.$/s, trans => trans.__('You stopped the cell.')],
  [/^The cell raised (\w+)\.$/s, (trans, m) => trans.__('The cell raised %1.', m[1])],
  [/^panel$/s, trans => trans.__('in the panel')],
  [/^input box$/s, trans => trans.__('in the input box')],
  [/^remembered$/s, trans => trans.__('allowed before')],
  [/^configuration$/s, trans => trans.__('by the configuration')],
  [/^deadline$/s, trans => trans.__('the time was over')],
  [/^withdrawn$/s, trans => trans.__('withdrawn')],
  [/^booting$/s, trans => trans.__('it boots')],
  [/^image_ready$/s, trans => trans.__('the image is there')],
  [/^image_pull_started$/s, trans => trans.__('the image is being downloaded')],
  [/^image_pull_failed$/s, trans => trans.__('the image could not be downloaded')],
  [/^image_pull_completed$/s, trans => trans.__('the image was downloaded')],
  [/^network$/s, trans => trans.__('a host was to be reached')],
  [/^spare$/s, trans => trans.__('kept ready for the next cell')],
  [/^provider_probe$/s, trans => trans.__('examining the provider')],
  [/^provider_selected$/s, trans => trans.__('the provider is chosen')],
  [/^panel closed$/s, trans => trans.__('the panel was closed')],
  [/^input_timeout_fail$/s, trans => trans.__('there was nobody to ask')],
  [/^auto_allow$/s, trans => trans.__('by the setting auto_allow')],
  [/^“(.+?)” \((\w+): (.+)\) ((?:was|could) .+?)(?: because (.+))?; nothing was run for it\.$/s, refusal],
  [/^Run it again to be asked again\.$/s, trans => trans.__('Run it again to be asked again.')],
  [/^Run it again and answer the question\.$/s, trans => trans.__('Run it again and answer the question.')],
  [/^Run it again if it was meant\.$/s, trans => trans.__('Run it again if it was meant.')],
  [/^Change it there to be asked\.$/s, trans => trans.__('Change it there to be asked.')],
  [/^Your configuration names the handler\.$/s, trans => trans.__('Your configuration names the handler.')],
  [/^Use a front end with the panel or an input box, or (.+)\.$/s, (trans, m) => trans.__('Use a front end with the panel or an input box, or %1.', say(trans, ENDS, m[1]))],
  [/^list the hosts in c\.AgentlyKernel\.network_hosts in your configuration$/s, trans => trans.__('list the hosts in c.AgentlyKernel.network_hosts in your configuration')],
  [/^set c\.AgentlyKernel\.isolation, unsafe_fallback and trusted_local_authorized in your configuration$/s, trans => trans.__('set c.AgentlyKernel.isolation, unsafe_fallback and trusted_local_authorized in your configuration')],
  [/^name the folder in c\.AgentlyKernel\.save_outputs in your configuration$/s, trans => trans.__('name the folder in c.AgentlyKernel.save_outputs in your configuration')],
  [/^set c\.AgentlyKernel\.auto_allow = True in your configuration, which answers every question with yes$/s, trans => trans.__('set c.AgentlyKernel.auto_allow = True in your configuration, which answers every question with yes')],
  [/^Variables, imports and threads are lost; files and the sandbox live on\.$/s, trans => trans.__('Variables, imports and threads are lost; files and the sandbox live on.')],
  [/^Variables and files that had not been collected are lost; collected outputs are kept\.$/s, trans => trans.__('Variables and files that had not been collected are lost; collected outputs are kept.')],
  [/^The (.+) was ended at the memory limit of (.+) MiB: (.+)\.$/s, (trans, m) => trans.__('The %1 was ended at the memory limit of %2 MiB: %3.', say(trans, CAUSES, m[1]), m[2], say(trans, CAUSES, m[3]))],
  [/^Files that cells wrote hold (\d+) MiB of it: delete some, or restart the sandbox\.$/s, (trans, m) => trans.__('Files that cells wrote hold %1 MiB of it: delete some, or restart the sandbox.', m[1])],
  [/^The interpreter was ended because (.+)\.$/s, (trans, m) => trans.__('The interpreter was ended because %1.', say(trans, CAUSES, m[1]))],
  [/^The sandbox was ended because (.+)\.$/s, (trans, m) => trans.__('The sandbox was ended because %1.', say(trans, CAUSES, m[1]))],
  [/^The interpreter was ended by (.+?)(?: \((.+)\))?\.$/s, (trans, m) => trans.__('The interpreter was ended by %1.', signal(trans, m))],
  [/^The sandbox ended by (.+?)(?: \((.+)\))?\.$/s, (trans, m) => trans.__('The sandbox was ended by %1.', signal(trans, m))],
  [/^The interpreter ended itself with exit code (.+)\.$/s, (trans, m) => trans.__('The interpreter ended itself with exit code %1.', m[1])],
  [/^The interpreter ended for an unknown reason\.$/s, trans => trans.__('The interpreter ended for an unknown reason.')],
  [/^The sandbox ended with exit code (.+)\.$/s, (trans, m) => trans.__('The sandbox ended with exit code %1.', m[1])],
  [/^The sandbox ended for an unknown reason\.$/s, trans => trans.__('The sandbox ended for an unknown reason.')],
  [/^gVisor's kernel gave up, as it does when the sandbox has used up its processes or memory\.$/s, trans => trans.__('gVisor’s kernel gave up, as it does when the sandbox has used up its processes or memory.')],
  [/^The container was ended by (.+), which may be stopping itself, or by another program on its machine \(SIGKILL\)\.$/s, (trans, m) => trans.__('The container was ended by %1, which may be stopping itself, or by another program on its machine (SIGKILL).', m[1])],
  [/^The sandbox was lost: (.+)\.$/s, (trans, m) => trans.__('The sandbox was lost: %1.', m[1])],
  [/^No cause could be observed\.$/s, trans => trans.__('No cause could be observed.')]
];

/** What a panel is told after it asked for something. */
export const REPLIES: Rule[] = [
  [/^There is no kernel\.$/s, trans => trans.__('There is no kernel.')],
  [/^The kernel did not answer in time\.$/s, trans => trans.__('The kernel did not answer in time.')],
  [/^No collected output is called (.+)\.$/s, (trans, m) => trans.__('No collected output is called %1.', m[1])],
  [/^This panel speaks protocol (.+), the kernel (.+): they come from different versions of agently-kernel\.$/s, (trans, m) => trans.__('This panel speaks protocol %1, the kernel %2: they come from different versions of agently-kernel.', m[1], m[2])],
  [/^Restart JupyterLab and reload this page\.$/s, trans => trans.__('Restart JupyterLab and reload this page.')],
  [/^This kernel does not offer that\.$/s, trans => trans.__('This kernel does not offer that.')],
  [/^Your configuration of the kernel decides: (.+)\.$/s, (trans, m) => trans.__('Your configuration of the kernel decides: %1.', m[1])],
  [/^The answer was for something else than is asked; look again\.$/s, trans => trans.__('The answer was for something else than is asked; look again.')],
  [/^This can be allowed once only\.$/s, trans => trans.__('This can be allowed once only.')],
  [/^Type (.+) to allow this\.$/s, (trans, m) => trans.__('Type %1 to allow this.', m[1])],
  [/^This was answered already, withdrawn, or its time was over\.$/s, trans => trans.__('This was answered already, withdrawn, or its time was over.')],
  [/^The kernel did not understand the panel's request (.+)\.$/s, (trans, m) => trans.__('The kernel did not understand the panel’s request %1.', m[1])],
  [/^The kernel could not do (.+); its log says why\.$/s, (trans, m) => trans.__('The kernel could not do %1; its log says why.', m[1])],
  [/^The kernel knows nothing of that execution any more\.$/s, trans => trans.__('The kernel knows nothing of that execution any more.')],
  [/^The kernel's copy of (.+) could not be read: (.+)\.$/s, (trans, m) => trans.__('The kernel’s copy of %1 could not be read: %2.', m[1], m[2])],
  [/^That was taken back already\.$/s, trans => trans.__('That was taken back already.')],
  [/^A cell is running\.$/s, trans => trans.__('A cell is running.')],
  [/^Stop it first, then restart the sandbox\.$/s, trans => trans.__('Stop it first, then restart the sandbox.')],
  [/^The sandbox was closed\.$/s, trans => trans.__('The sandbox was closed.')],
  [/^Variables are lost, collected files are kept; the next cell opens a fresh one\.$/s, trans => trans.__('Variables are lost, collected files are kept; the next cell opens a fresh one.')],
  [/^Outputs are saved below the notebook's folder only; give a relative folder\.$/s, trans => trans.__('Outputs are saved below the notebook’s folder only; give a relative folder.')],
  [/^It will be asked for again\.$/s, trans => trans.__('It will be asked for again.')],
  [/^(.+) can no longer be reached; open connections were ended\.$/s, (trans, m) => trans.__('%1 can no longer be reached; open connections were ended.', m[1])],
  [/^(.+) can still be reached, by your configuration\.$/s, (trans, m) => trans.__('%1 can still be reached, by your configuration.', m[1])],
  [/^(.+) can still be reached, by another grant or your configuration\.$/s, (trans, m) => trans.__('%1 can still be reached, by another grant or your configuration.', m[1])],
  [/^It is still in (.+), which was given too: take that back as well\.$/s, (trans, m) => trans.__('It is still in %1, which was given too: take that back as well.', m[1])],
  [/^(.+) will be asked for again\.$/s, (trans, m) => trans.__('%1 will be asked for again.', m[1])],
  [/^No new sandbox gets (.+), but the open one can still read (.+): restart the sandbox to end that \(variables are lost\)\.$/s, (trans, m) => trans.__('No new sandbox gets %1, but the open one can still read %2: restart the sandbox to end that (variables are lost).', m[1], m[2])],
  [/^(.+) was removed from the sandbox\.$/s, (trans, m) => trans.__('%1 was removed from the sandbox.', m[1])],
  [/^What code has read of it stays in its variables\.$/s, trans => trans.__('What code has read of it stays in its variables.')],
  [/^(.+) is not shown any more\.$/s, (trans, m) => trans.__('%1 is not shown any more.', m[1])],
  [/^What was shown before stays in the page until its output is cleared\.$/s, trans => trans.__('What was shown before stays in the page until its output is cleared.')],
  [/^(.+) is a link, and links are not followed; nothing was saved$/s, (trans, m) => trans.__('%1 is a link, and links are not followed; nothing was saved', m[1])],
  [/^(.+) is a folder; nothing was saved\.$/s, (trans, m) => trans.__('%1 is a folder; nothing was saved.', m[1])],
  [/^Save in another folder$/s, trans => trans.__('Save in another folder')],
  [/^(.+) could not be written: (.+)$/s, (trans, m) => trans.__('%1 could not be written: %2', m[1], m[2])],
  [/^(.+) of yours would be replaced in (.+), too many to be asked about; save in another folder$/s, (trans, m) => trans.__('Files of yours that would be replaced in %2: %1, too many to be asked about; save in another folder', String(parseInt(m[1], 10)), m[2])],
  [/^(.+): (.+); save in another folder$/s, (trans, m) => trans.__('%1: %2; save in another folder', m[1], m[2])],
  [/^“/, (trans, m) => say(trans, ENDS, m.input)]
];

/** Files for which there was no room, after why. */
function leftOut(trans: TranslationBundle, m: RegExpExecArray): string {
  const names = m[3] ? trans.__('%1 and %2 more', m[2], m[3]) : m[2];
  return trans.__(
    '%1 Left out: %2. To make room remove files there or pack them into one archive, or raise max_files in c.AgentlyKernel.collection.',
    say(trans, REFUSALS, m[1]),
    names
  );
}

/** Why a file was not collected. */
export const REFUSALS: Rule[] = [
  [/^(.+); left out: (.+?)(?: and ([\d,]+) more)?; to make room remove files there or pack them into one archive, or raise max_files in c\.AgentlyKernel\.collection$/s, leftOut],
  [/^.+ was not taken: it is a pipe, socket or device, not a regular file$/s, trans => trans.__('It is a pipe, socket or device, not a regular file.')],
  [/^(?:.+ was not taken: there is no such file)$/s, trans => trans.__('It was declared and is not there.')],
  [/^(?:.+ was not taken: it is a symbolic link; links are not followed out of a sandbox)$/s, trans => trans.__('It is a link; links are not followed out of a sandbox.')],
  [/^(?:.+ was not taken: a symbolic link stands in its path; links are not followed out of a sandbox)$/s, trans => trans.__('A link stands in its path; links are not followed out of a sandbox.')],
  [/^(?:.+ was not taken: it has (\d+) hard links; copy the file instead of linking it)$/s, (trans, m) => trans.__('It has %1 hard links; copy the file instead of linking it.', m[1])],
  [/^(?:.+ was not taken: it is (.+), not a regular file)$/s, (trans, m) => trans.__('It is not a regular file (%1).', m[1])],
  [/^(?:.+ was not taken: another file system is mounted in its path)$/s, trans => trans.__('Another file system is mounted in its path.')],
  [/^(?:.+ was not taken: it has ([\d,]+) bytes; the limit for one file is ([\d,]+) bytes)$/s, (trans, m) => trans.__('It has %1 bytes; the limit for one file is %2.', m[1], m[2])],
  [/^(?:.+ was not taken: with its ([\d,]+) bytes all files exceed the limit of ([\d,]+) bytes together)$/s, (trans, m) => trans.__('With its %1 bytes all outputs together exceed %2.', m[1], m[2])],
  [/^(?:.+ was not taken: its folders were renamed while it was being read)$/s, trans => trans.__('Its folders were renamed while it was being read.')],
  [/^(?:.+ was not taken: it was (?:written to|shortened) while it was being read)$/s, trans => trans.__('It was changed while it was being read.')],
  [/^(?:.+ was not taken: its name could deceive a reader, or is not in the usual \(NFC\) form; rename it)$/s, trans => trans.__('Its name could deceive a reader, or is not in the usual (NFC) form; rename it.')],
  [/^(?:.+ was not taken: its path is too long)$/s, trans => trans.__('Its path is too long.')],
  [/^(?:.+ was not taken: it cannot be read: (.+))$/s, (trans, m) => trans.__('It cannot be read: %1', m[1])],
  [/^.+ was not taken: the collection was cancelled$/s, trans => trans.__('The collection was cancelled.')],
  [/^.+ was not taken: the collection did not end within (.+) seconds$/s, (trans, m) => trans.__('The collection did not end within %1 seconds.', m[1])],
  [/^.+ was not taken: (.+) files lie there already, the most that are kept at a time$/s, (trans, m) => trans.__('%1 files lie there already, the most that are kept at a time.', m[1])],
  [/^.+ was not taken: its files could not be listed: (.+)$/s, (trans, m) => trans.__('Its files could not be listed: %1', m[1])],
  [/^.+ was not taken: it did not arrive within (.+) seconds$/s, (trans, m) => trans.__('It did not arrive within %1 seconds.', m[1])],
  [/^.+ was not taken: folders nested deeper than (.+) are not searched$/s, (trans, m) => trans.__('Folders nested deeper than %1 are not searched.', m[1])],
  [/^.+ was not taken: it holds more than (.+) entries; the rest was not looked at$/s, (trans, m) => trans.__('It holds more than %1 entries; the rest was not looked at.', m[1])],
  [/^(.+) was not taken: (.+)$/s, (trans, m) => trans.__('%1 was not taken: %2', m[1], m[2])]
];
