/**
 * Which physical GPU a device name means, as NVIDIA's management library names it. Pure.
 *
 * A process sees the devices that CUDA_VISIBLE_DEVICES lists, by number or UUID; the management library always sees all of them, in the order of the PCI bus.
 */
import type { GpuSelector } from '../system/nvml.ts';
import type { Device } from './device-name.ts';

/**
 * @param parent environment of the supervisor, as childEnvironment() reads it.
 * @returns undefined for a device that is no NVIDIA GPU, and where the list has no such entry.
 */
export function gpuSelector(
  { kind, index }: Device,
  parent: Readonly<Record<string, string | undefined>> = process.env,
): GpuSelector | undefined {
  if (kind !== 'cuda' && kind !== 'tensorrt') return undefined;
  const list = parent.CUDA_VISIBLE_DEVICES;
  if (list === undefined) return { index };
  const chosen = list
    .split(',')
    .map((entry) => entry.trim())
    .filter((entry) => entry !== '')[index];
  if (chosen === undefined) return undefined;
  return /^\d+$/.test(chosen) ? { index: Number(chosen) } : { uuid: chosen };
}
