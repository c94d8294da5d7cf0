import { describe, expect, it } from 'vitest';
import * as words from '../kerneltexts';
import { bundle } from './synthetic';

describe('sentences of the kernel', () => {
  const zh = bundle({
    'The system call %1 is refused': '拒绝系统调用 %1',
    'A socket of the family %1 is refused': '拒绝 %1 类型的套接字',
    'filter mode %1, filters: %2': '过滤模式 %1，过滤器 %2 个',
    'Mechanism': '机制'
  });

  it('are said in the language of the reader, with what the kernel saw', () => {
    expect(words.checkText(zh, 'ptrace is refused')).toBe('拒绝系统调用 ptrace');
    expect(words.checkText(zh, 'a socket of family alg is refused')).toBe(
      '拒绝 alg 类型的套接字'
    );
    expect(words.detailText(zh, 'mode 2, 1 filter(s)')).toBe(
      '过滤模式 2，过滤器 1 个'
    );
    expect(words.mechanismName(zh, 'mechanism', 'x')).toBe('机制');
  });

  it('stay as they are where they are not known', () => {
    for (const say of [
      words.checkText,
      words.detailText,
      words.reasonText,
      words.skipText,
      words.remedyText,
      words.refusalText
    ]) {
      expect(say(zh, 'of an outside provider: 100% %1')).toBe(
        'of an outside provider: 100% %1'
      );
      expect(say(zh, '')).toBe('');
    }
    expect(words.mechanismName(zh, 'flux', 'flux')).toBe('flux');
  });

  it('do not take what a guest named for places of their own', () => {
    expect(
      words.reasonText(
        bundle({}),
        'Output of type x/%2%1 was withheld: its renderer may run code in the page.'
      )
    ).toContain('x/%2%1');
  });
});
