import react from '@vitejs/plugin-react'
import { defineConfig } from 'vite'

// `make run` serves the API on this port.
const SERVICE = process.env.POSTHOUSE ?? 'http://127.0.0.1:8025'

export default defineConfig({
  base: '/dashboard/',
  plugins: [react()],
  build: {
    outDir: '../src/posthouse/dashboard',
    emptyOutDir: true,
    manifest: true,
    target: 'es2022',
    // The policy allows neither inline scripts nor data: fonts.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
  },
  // Code of the documentation is shown on a page.
  server: { fs: { allow: ['..'] }, proxy: { '/v1': SERVICE, '/emails': SERVICE, '/dashboard/frame': SERVICE } },
})
