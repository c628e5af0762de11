/** Piscina's entry for instances: see src/device/instance.ts. */
export { runInstance } from '../src/device/instance.ts';
