import type { TranslationBundle } from '@jupyterlab/translation';

/** A text of the kernel, and how it is said in the reader's language. */
export type Rule = [RegExp, (trans: TranslationBundle, m: RegExpExecArray) => string];

function one(trans: TranslationBundle, rules: Rule[], text: string): string | null {
  for (const [pattern, words] of rules) {
    const found = pattern.exec(text);
    if (found) {
      return words(trans, found);
    }
  }
  return null;
}

/** Say each sentence of a text, else the text as a whole; what is not known stays as it is. */
export function say(trans: TranslationBundle, rules: Rule[], text: string): string {
  const parts = text.split(/(\n|(?<=\.) (?=[A-Z“]))/);
  const said = parts.map((part, index) => (index % 2 ? part : one(trans, rules, part)));
  if (!said.includes(null)) {
    return said.join('');
  }
  return one(trans, rules, text) ?? said.map((each, index) => each ?? parts[index]).join('');
}
