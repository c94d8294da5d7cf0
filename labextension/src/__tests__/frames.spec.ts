import { beforeEach, describe, expect, it } from 'vitest';
import { FrameHeights, heightFor } from '../frames';

describe('heightFor', () => {
  it.each([
    [300, 150, 320],
    [60, 400, 80],
    [1, 400, 40],
    [99_999, 400, 2000],
    [400, 400, null], // as high as its frame, whatever that is
    [390, 400, null],
    [Infinity, 400, null],
    [NaN, 400, null],
    ['300', 400, null],
    [undefined, 400, null]
  ])('%s in a frame of %s', (reported, current, height) => {
    expect(heightFor(reported, current)).toBe(height);
  });
});

describe('FrameHeights', () => {
  let frames: HTMLIFrameElement[];
  let heights: FrameHeights;
  const say = (source: Window | null, height: unknown, type?: string) =>
    heights.take({
      source,
      data: { type: type ?? 'agently.frame.height', height }
    });

  beforeEach(() => {
    document.body.innerHTML =
      '<iframe class="agently-frame" sandbox="allow-scripts" style="height: 150px"></iframe>'.repeat(
        2
      ) + '<iframe sandbox="allow-scripts" style="height: 150px"></iframe>';
    frames = Array.from(document.querySelectorAll('iframe'));
    heights = new FrameHeights();
  });

  it('resizes the frame that spoke and no other', () => {
    say(frames[1].contentWindow, 300);
    expect(frames.map(frame => frame.style.height)).toEqual([
      '150px',
      '320px',
      '150px'
    ]);
  });

  it('does not listen to other windows, frames and messages', () => {
    say(window, 300);
    say(null, 300);
    say(frames[2].contentWindow, 300);
    say(frames[0].contentWindow, 300, 'other');
    heights.take({ source: frames[0].contentWindow, data: null });
    expect(frames.map(frame => frame.style.height)).toEqual([
      '150px',
      '150px',
      '150px'
    ]);
  });

  it('leaves a height that a person chose', () => {
    say(frames[0].contentWindow, 300);
    frames[0].style.height = '555px';
    say(frames[0].contentWindow, 200);
    expect(frames[0].style.height).toBe('555px');
  });

  it('ends the dance of a frame that never keeps still', () => {
    for (let turn = 0; turn < 200; turn++) {
      say(frames[0].contentWindow, turn % 2 ? 300 : 600);
    }
    const last = frames[0].style.height;
    say(frames[0].contentWindow, 1000);
    expect(frames[0].style.height).toBe(last);
  });
});
