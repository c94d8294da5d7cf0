import { describe, expect, it } from 'vitest';
import { badgesOf } from '../badges';
import {
  bytes,
  countdown,
  csvRows,
  seconds,
  sentence,
  shortDigest
} from '../format';
import { ActivationGuard, ARM_DELAY } from '../guard';
import { MAX_EXECUTIONS, MAX_TIMELINE, reduce } from '../reducer';
import { bundle, event, line, question, run, snapshot } from './synthetic';

describe('reduce', () => {
  it('keeps what an event does not name', () => {
    const before = snapshot({ approvals: [question()] });
    const after = reduce(before, event({ timeline: [line(1)] }))!;
    expect(after.seq).toBe(5);
    expect(after.approvals).toBe(before.approvals);
    expect(after.timeline).toEqual([line(1)]);
  });

  it('tells a value of null from no value', () => {
    const sandbox = { provider_id: 'x' } as never;
    const before = snapshot({ sandbox });
    expect(reduce(before, event({}))!.sandbox).toBe(sandbox);
    expect(reduce(before, event({ sandbox: [null] }))!.sandbox).toBeNull();
  });

  it('reports a gap and passes over what it has', () => {
    const before = snapshot();
    expect(reduce(before, event({ seq: 6 }))).toBeNull();
    expect(reduce(before, event({ seq: 4, approvals: [] }))).toBe(before);
  });

  it('merges executions by id and drops timeline lines it has', () => {
    const before = snapshot({
      executions: [run('a', { status: 'running' }), run('b')],
      timeline: [line(1), line(2)]
    });
    const after = reduce(
      before,
      event({ executions: [run('a'), run('c')], timeline: [line(2), line(3)] })
    )!;
    expect(after.executions.map(e => [e.execution_id, e.status])).toEqual([
      ['a', 'success'],
      ['b', 'success'],
      ['c', 'success']
    ]);
    expect(after.timeline.map(e => e.number)).toEqual([1, 2, 3]);
  });

  it('is bounded', () => {
    const many = Array.from({ length: 2000 }, (_, i) => i + 1);
    const after = reduce(
      snapshot(),
      event({
        executions: many.map(i => run(String(i))),
        timeline: many.map(line)
      })
    )!;
    expect(after.executions.length).toBe(MAX_EXECUTIONS);
    expect(after.timeline.length).toBe(MAX_TIMELINE);
    expect(after.timeline[MAX_TIMELINE - 1].number).toBe(2000);
  });
});

describe('ActivationGuard', () => {
  const press = { isTrusted: true, detail: 1 };

  it('sleeps, wakes, and sleeps again when asked', () => {
    let now = 0;
    const guard = new ActivationGuard(() => now);
    expect(guard.allows(press)).toBe(false);
    now = ARM_DELAY - 1;
    expect([guard.allows(press), guard.wait]).toEqual([false, 1]);
    now = ARM_DELAY;
    expect(guard.allows(press)).toBe(true);
    guard.rearm();
    expect(guard.allows(press)).toBe(false);
  });

  it('takes no script and no double click', () => {
    let now = 0;
    const guard = new ActivationGuard(() => now);
    now = ARM_DELAY;
    expect(guard.allows({ isTrusted: false, detail: 1 })).toBe(false);
    expect(guard.allows({ isTrusted: true, detail: 2 })).toBe(false);
    expect(guard.allows({ isTrusted: true, detail: 0 })).toBe(true);
  });
});

describe('format', () => {
  it('writes sizes, times and digests for people', () => {
    expect([0, 999, 1000, 12_345, 999_600, 2_000_000_000].map(bytes)).toEqual([
      '0 B',
      '999 B',
      '1000 B',
      '12 KiB',
      '976 KiB',
      '1.9 GiB'
    ]);
    expect([0.123, 14.2, 125].map(seconds)).toEqual([
      '0.12 s',
      '14 s',
      '2 min 5 s'
    ]);
    expect([0, 59.2, 119.5].map(countdown)).toEqual(['0:00', '1:00', '2:00']);
    expect(shortDigest('sha256:0123456789abcdef')).toBe('012345…cdef');
  });

  it('reads CSV with quotes, and only as much as asked', () => {
    const text = 'a,b,c\r\n"x,1","say ""hi""",3\nlast,row';
    expect(csvRows(text, ',', 9, 9)).toEqual([
      ['a', 'b', 'c'],
      ['x,1', 'say "hi"', '3'],
      ['last', 'row']
    ]);
    expect(csvRows(text, ',', 1, 2)).toEqual([['a', 'b']]);
  });

  it('translates a fixed sentence around its subject', () => {
    const trans = bundle({ 'Wanted: %1.': '需要：%1。' });
    expect(sentence(trans, 'Wanted: x%20y.\nsize: 3', 'x%20y')).toBe(
      '需要：x%20y。\nsize: 3'
    );
    expect(sentence(trans, 'Wanted: %1 of %2.', 'zzz')).toBe(
      'Wanted: %1 of %2.'
    );
    expect(sentence(trans, 'plain', '')).toBe('plain');
  });
});

describe('badgesOf', () => {
  it('lets the last run of a cell and a waiting question decide', () => {
    const badges = badgesOf(
      snapshot({
        executions: [
          run('1', { cell_id: 'a', status: 'died' }),
          run('2', { cell_id: 'a' }),
          run('3', { cell_id: 'b', refused: 1 }),
          run('4', { cell_id: 'c', withheld: 2 }),
          run('5', { cell_id: 'd' }),
          run('6', { cell_id: 'q', quiet: true }),
          run('7', { cell_id: 'u', unsafe: true }) // a program without isolation beside an isolated session
        ],
        approvals: [question({ cell_id: 'd' })]
      })
    );
    expect([...badges]).toEqual([
      ['a', 'ran'],
      ['b', 'problem'],
      ['c', 'withheld'],
      ['d', 'ask'],
      ['u', 'open']
    ]);
  });
});
