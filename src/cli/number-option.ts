/** Values of options that are numbers. */
import { ExitError } from '../config/exit-codes.ts';

/** @throws ExitError USAGE for anything but a whole number from 1 to `max` */
export function wholeNumber(text: string | undefined, option: string, max: number): number | undefined {
  if (text === undefined) return undefined;
  const value = /^[0-9]{1,15}$/.test(text) ? Number(text) : 0;
  if (value < 1 || value > max) {
    throw new ExitError('USAGE', `${option}: ${JSON.stringify(text)} is not a whole number from 1 to ${max}`);
  }
  return value;
}

/** @throws ExitError USAGE for anything but a decimal number above `above` and up to `max` */
export function decimal(text: string, option: string, { above, max }: { above: number; max: number }): number {
  const value = /^(\d{1,15}(\.\d{0,9})?|\.\d{1,9})$/.test(text) ? Number(text) : Number.NaN;
  if (value > above && value <= max) return value;
  throw new ExitError('USAGE', `${option}: ${JSON.stringify(text)} is not a number above ${above}, up to ${max}`);
}
