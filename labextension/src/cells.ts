import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ApprovalView } from './protocol';

/** What a cell is called in the panel: by its prompt number where it has one, else by its place. */
export function cellName(
  trans: TranslationBundle,
  notebook: NotebookPanel,
  cellId: string,
  count?: number | null
): string {
  if (count) {
    return trans.__('Cell [%1]', count);
  }
  const cells = notebook.content.widgets;
  const index = cells.findIndex(cell => cell.model.id === cellId);
  if (index < 0) {
    return trans.__('A cell');
  }
  const shown = cells[index].model.type === 'code'
    ? (cells[index].model as unknown as { executionCount: number | null })
        .executionCount
    : null;
  return shown
    ? trans.__('Cell [%1]', shown)
    : trans.__('Cell %1 from the top', index + 1);
}

/** Who asks a question: a cell, or the person who clicked in the panel. */
export function askerName(
  trans: TranslationBundle,
  notebook: NotebookPanel,
  approval: ApprovalView
): string {
  return askedByPanel(approval)
    ? trans.__('You, by a click in this panel')
    : cellName(trans, notebook, approval.cell_id);
}

/** True for what was asked for by a click in a panel: saving a file, outside of every cell. */
export function askedByPanel(approval: ApprovalView): boolean {
  return (
    approval.cell_id === '' &&
    (approval.gate === 'save_output' || approval.gate === 'replace_file')
  );
}

/** Bring a cell into view and make it the active one. */
export async function goToCell(
  notebook: NotebookPanel,
  cellId: string
): Promise<void> {
  const index = notebook.content.widgets.findIndex(
    cell => cell.model.id === cellId
  );
  if (index < 0) {
    return;
  }
  notebook.content.activeCellIndex = index;
  await notebook.content.scrollToItem(index, 'smart');
}
