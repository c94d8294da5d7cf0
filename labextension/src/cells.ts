import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';

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
