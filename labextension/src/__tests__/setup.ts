// What JupyterLab's packages expect of a browser and jsdom does not have.
class Stub {
  observe(): void {}
  unobserve(): void {}
  disconnect(): void {}
}

Object.assign(globalThis, {
  IS_REACT_ACT_ENVIRONMENT: true,
  DragEvent: class DragEvent extends Event {},
  ResizeObserver: Stub,
  IntersectionObserver: Stub,
  matchMedia: () => ({ matches: false, addEventListener: () => undefined }),
  requestIdleCallback: (run: () => void) => setTimeout(run, 0)
});
