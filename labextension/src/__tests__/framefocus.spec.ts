import { beforeEach, describe, expect, it, vi } from 'vitest';
import { FrameFocus } from '../framefocus';

describe('FrameFocus', () => {
  let frame: HTMLIFrameElement;
  let field: HTMLInputElement;

  beforeEach(() => {
    vi.useFakeTimers();
    document.body.innerHTML =
      '<input><iframe class="agently-frame" sandbox="allow-scripts" tabindex="0"></iframe>';
    frame = document.querySelector('iframe')!;
    field = document.querySelector('input')!;
    new FrameFocus('stopped');
    field.focus();
  });

  const taken = () => {
    frame.focus();
    window.dispatchEvent(new Event('blur'));
    vi.runAllTimers();
    return document.activeElement === frame;
  };
  const key = (name: string) =>
    field.dispatchEvent(new KeyboardEvent('keydown', { key: name, bubbles: true }));
  const point = (kind: string) =>
    frame.dispatchEvent(new MouseEvent(kind, { bubbles: true }));

  it('gives the focus back that a frame took, and wakes the frame by a click', () => {
    expect(taken()).toBe(false);
    expect([document.activeElement, frame.hasAttribute('inert')]).toEqual([field, true]);
    document.body.dispatchEvent(
      new MouseEvent('pointerdown', { bubbles: true, clientX: 0, clientY: 0 })
    );
    expect(frame.hasAttribute('inert')).toBe(false);
    expect(taken()).toBe(true);
  });

  it('stops a frame that does not sleep', () => {
    taken();
    expect(frame.srcdoc).toBe('');
    expect(taken()).toBe(false);
    expect(frame.srcdoc).toBe('<p>stopped</p>');
  });

  it('leaves the focus where a person put it', () => {
    point('pointerover');
    expect(taken()).toBe(true);
    field.focus();
    key('Tab');
    expect(taken()).toBe(true);
  });

  it('does not take resting the pointer on a frame while typing for pointing', () => {
    point('pointerover');
    key('a');
    expect(taken()).toBe(false);
  });
});
