/** The software Vulkan driver of Debian's package chromium, on which WebGPU is tested. */
import { existsSync } from 'node:fs';
import { canLoadLibrary } from '../../src/runtime/library.ts';

export const SOFTWARE_DRIVER = '/usr/lib/chromium/vk_swiftshader_icd.json';

/** Why WebGPU cannot be tested here; undefined when it can. */
export function missingForWebGpu(): string | undefined {
  const missing = [
    ...(existsSync(SOFTWARE_DRIVER) ? [] : [`${SOFTWARE_DRIVER} (package chromium)`]),
    ...(canLoadLibrary('libvulkan.so.1') ? [] : ['libvulkan.so.1 (package libvulkan1)']),
  ];
  return missing.length === 0 ? undefined : `missing: ${missing.join(', ')}`;
}
