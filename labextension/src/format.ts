import type { TranslationBundle } from '@jupyterlab/translation';
import { factText } from './kerneltexts';

/** Bytes for people, in the units of every other place of the product: 12 KiB, 1.5 MiB, 2 GiB. */
export function bytes(count: number): string {
  if (count < 1024) {
    return `${count} B`;
  }
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  let value = count;
  let unit = -1;
  do {
    value /= 1024;
    unit += 1;
  } while (value >= 1023.5 && unit < units.length - 1);
  const shown = value < 10 ? String(Number(value.toFixed(1))) : Math.round(value);
  return `${shown} ${units[unit]}`;
}

/** Seconds for people: 0.12 s, 14 s, 2 min 5 s. */
export function seconds(value: number): string {
  if (value < 10) {
    return `${value.toFixed(2)} s`;
  }
  if (value < 60) {
    return `${Math.round(value)} s`;
  }
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

/** m:ss of a countdown. */
export function countdown(value: number): string {
  const whole = Math.max(0, Math.ceil(value));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, '0')}`;
}

/** Wall-clock time of day of a moment in seconds since the epoch. */
export function clock(at: number): string {
  return new Date(at * 1000).toLocaleTimeString(undefined, { hour12: false });
}

/** A digest short enough to compare by eye. */
export function shortDigest(digest: string): string {
  const hex = digest.replace(/^sha256:/, '');
  return hex.length > 12 ? `${hex.slice(0, 6)}…${hex.slice(-4)}` : hex;
}

/** Rows and cells of the first lines of a CSV or TSV text (quotes understood), for a preview. */
export function csvRows(
  text: string,
  separator: string,
  rows: number,
  columns: number
): string[][] {
  const table: string[][] = [];
  let row: string[] = [];
  let cell = '';
  let quoted = false;
  const endCell = () => {
    if (row.length < columns) {
      row.push(cell);
    }
    cell = '';
  };
  for (let i = 0; i < text.length && table.length < rows; i++) {
    const ch = text[i];
    if (quoted) {
      if (ch === '"' && text[i + 1] === '"') {
        cell += '"';
        i++;
      } else if (ch === '"') {
        quoted = false;
      } else {
        cell += ch;
      }
    } else if (ch === '"' && cell === '') {
      quoted = true;
    } else if (ch === separator) {
      endCell();
    } else if (ch === '\n') {
      endCell();
      table.push(row);
      row = [];
    } else if (ch !== '\r') {
      cell += ch;
    }
  }
  if (table.length < rows && (cell !== '' || row.length > 0)) {
    endCell();
    table.push(row);
  }
  return table;
}

/**
 * Translate a sentence that the kernel composed from a fixed template and *subject*: the catalogue holds the template
 * with %1 in the subject's place. Unknown sentences stay as they are.
 */
export function sentence(
  trans: TranslationBundle,
  text: string,
  subject: string
): string {
  const [first, ...facts] = text.split('\n');
  const at = subject ? first.indexOf(subject) : -1;
  const before = at < 0 ? first : first.slice(0, at);
  const after = at < 0 ? '' : first.slice(at + subject.length);
  if (`${before}${after}`.includes('%')) {
    return text; // the translator would take it for a place of its own
  }
  const whole =
    at < 0 ? trans.__(first) : trans.__(`${before}%1${after}`, subject);
  return [whole, ...facts.map(fact => factText(trans, fact))].join('\n');
}
