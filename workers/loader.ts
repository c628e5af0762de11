/** Piscina's entry for loading and releasing sessions: see src/device/loader.ts. */
export { load, unload } from '../src/device/loader.ts';
