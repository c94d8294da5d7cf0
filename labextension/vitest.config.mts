import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    environment: 'jsdom',
    include: ['src/__tests__/**/*.spec.{ts,tsx}'],
    setupFiles: ['src/__tests__/setup.ts'],
    server: { deps: { inline: [/@jupyterlab/, /@jupyter\//, /@lumino/] } }
  }
});
