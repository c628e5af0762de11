/**
 * Starts a device as far as that goes without a model, so that one that cannot work is refused at the start and not at the first load.
 *
 * Appending a provider to session options already opens the device: WebGPU looks for its adapter (30 ms), CUDA and TensorRT bring in their libraries. What is
 * opened stays with the process, and the first load finds it there.
 */
import { BatchportError } from '../config/errors.ts';
import { type Device, findVulkanDrivers } from './device-name.ts';
import { OrtError } from './ort-error.ts';
import { withSessionOptions } from './session-options.ts';

/** What ONNX Runtime says is where in its sources, and then what has happened. */
const SOURCE_PLACE = /^\S+:\d+ .* was false\. /s;

/**
 * To be called in the device's own process, once `checkAvailable` has found nothing missing.
 *
 * @throws NOT_SUPPORTED naming the device, what is missing as far as that is known, and how to get it.
 */
export function startDevice(device: Device): void {
  if (device.kind === 'cpu') return;
  try {
    // Its own process sees no other device of the kind.
    withSessionOptions({ provider: device.kind, deviceId: 0, intraOpThreads: 1 }, () => {});
  } catch (error) {
    if (!(error instanceof OrtError)) throw error;
    const said = error.message.replace(SOURCE_PLACE, '').trim().replace(/\.$/, '');
    throw new BatchportError(
      'NOT_SUPPORTED',
      `Device ${device.text} is not available. ${advice(device)} ONNX Runtime says: ${said}.`,
      { cause: error },
    );
  }
}

function advice({ kind }: Device): string {
  if (kind !== 'webgpu') {
    return 'Its libraries could not be brought in: CUDA 12 and cuDNN 9 have to be installed, or their folders to be in LD_LIBRARY_PATH.';
  }
  return (
    `No Vulkan driver finds a GPU that can be used (${findVulkanDrivers(process.env).join(', ')}): install the driver of the GPU, let this user open ` +
    "/dev/dri/renderD* (group render), or name another driver's manifest in VK_DRIVER_FILES (a software driver is in Debian's package chromium: " +
    '/usr/lib/chromium/vk_swiftshader_icd.json).'
  );
}
