// Builds the pages into the server's source tree. The result is committed, so that `cargo build` needs no Node.
import { defineConfig } from 'vite';

export default defineConfig({
  base: '/',
  // JSX is compiled by Vite itself: no Babel, no plugin.
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: '../crates/leasehold-server/src/web/dist',
    emptyOutDir: true,
    assetsDir: 'assets',
    target: 'es2022',
    // The server's policy is `default-src 'self'`: nothing inline, neither script nor data: URL.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
    rollupOptions: { input: { locks: 'locks.html', buy: 'buy.html', staff: 'staff.html' } },
  },
  server: {
    // `LEASEHOLD_HTTP=http://127.0.0.1:7400 npx vite` edits the page against a running server.
    proxy: { '/v1': { target: process.env.LEASEHOLD_HTTP ?? 'http://127.0.0.1:7400', changeOrigin: true } },
  },
});
