/** Entry of a device process. Started by the supervisor with an IPC channel; see src/device/device.ts. */
import { DeviceProcess } from '../src/device/device.ts';
import type { FromDevice, ToDevice } from '../src/protocol/control.ts';
import { runChild } from '../src/system/child.ts';

let device: DeviceProcess | undefined;

runChild<ToDevice, FromDevice>('bp-device', (message, send) => {
  if (message.type === 'init') device = DeviceProcess.start(message, new URL('.', import.meta.url), send);
  else if (device !== undefined) device.handle(message);
  // The server stops before this process has begun, or after it was refused: there is nothing to finish.
  else if (message.type === 'stop') process.exit(0);
});
