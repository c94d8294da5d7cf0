import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { KernelLink } from './link';
import type { PanelSnapshot } from './protocol';
import type { IPanelOptions } from './tokens';

type Badge = 'ran' | 'open' | 'ask' | 'problem' | 'withheld';

const PROBLEMS: Badge[] = ['open', 'ask', 'problem'];

/** The badge of every cell that has one, by cell id; later executions win. */
export function badgesOf(snapshot: PanelSnapshot | null): Map<string, Badge> {
  const badges = new Map<string, Badge>();
  if (!snapshot) {
    return badges;
  }
  for (const run of snapshot.executions) {
    if (!run.cell_id || run.quiet || run.status === 'running') {
      continue;
    }
    let badge: Badge = run.unsafe ? 'open' : 'ran';
    if (run.status === 'died' || run.status === 'blocked' || run.refused > 0) {
      badge = 'problem';
    } else if (run.withheld > 0) {
      badge = 'withheld';
    }
    badges.set(run.cell_id, badge);
  }
  for (const approval of snapshot.approvals) {
    badges.set(approval.cell_id, 'ask');
  }
  return badges;
}

function describe(trans: TranslationBundle, badge: Badge): string {
  switch (badge) {
    case 'ran':
      return trans.__('Ran in the sandbox');
    case 'open':
      return trans.__('Ran WITHOUT isolation');
    case 'ask':
      return trans.__('Waits for your answer');
    case 'problem':
      return trans.__('An output is missing, or the cell did not run to its end');
    case 'withheld':
      return trans.__('Ran in the sandbox; an output was withheld');
  }
}

/** Write the badges onto the cells of a notebook; the style sheet draws them. */
export function paintBadges(
  notebook: NotebookPanel,
  link: KernelLink,
  choice: IPanelOptions['cellBadges'],
  trans: TranslationBundle
): void {
  const badges =
    choice === 'none' || link.state === 'foreign'
      ? new Map<string, Badge>()
      : badgesOf(link.snapshot);
  for (const cell of notebook.content.widgets) {
    const badge = badges.get(cell.model.id);
    const shown =
      badge && (choice === 'all' || PROBLEMS.includes(badge)) ? badge : null;
    if (shown) {
      if (cell.node.dataset.agentlyBadge !== shown) {
        cell.node.dataset.agentlyBadge = shown;
        cell.promptNode?.setAttribute('title', describe(trans, shown));
      }
    } else if (cell.node.dataset.agentlyBadge) {
      delete cell.node.dataset.agentlyBadge;
      cell.promptNode?.removeAttribute('title');
    }
  }
}
