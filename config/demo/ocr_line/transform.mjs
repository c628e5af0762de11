/**
 * A picture of a line of text, as the recognizer takes it: 48 pixels high, in three equal planes from −1 (black) to 1 (white), at least 320 wide, with zeros behind the line.
 *
 * @import { Before } from 'batchport/transform'
 */
import { ClientError } from 'batchport/transform';
import { PngError, readPng } from './png.mjs';

const HEIGHT = 48;
const WIDTH_MIN = 320;
const WIDTH_MAX = 3200;
/** Widths are rounded up to this, so that lines of about the same length can share a batch. */
const WIDTH_STEP = 32;
const PLANES = 3;

/** @type {Before} */
export function before({ inputs }) {
  const { width, height, grey } = picture(inputs.png.data[0]);
  const lineWidth = Math.max(1, Math.round((width * HEIGHT) / height));
  if (lineWidth > WIDTH_MAX)
    throw new ClientError(`the picture is ${width} × ${height}: too long for one line of text`);
  const columns = weights(width, lineWidth);
  const rows = weights(height, HEIGHT);
  const tensorWidth = Math.max(WIDTH_MIN, Math.ceil(lineWidth / WIDTH_STEP) * WIDTH_STEP);
  const data = new Float32Array(PLANES * HEIGHT * tensorWidth);
  const squeezed = new Float32Array(lineWidth * height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < lineWidth; x++) squeezed[y * lineWidth + x] = mixed(grey, y * width, 1, columns[x]);
  }
  for (let y = 0; y < HEIGHT; y++) {
    for (let x = 0; x < lineWidth; x++) {
      const value = 2 * mixed(squeezed, x, lineWidth, rows[y]) - 1;
      for (let plane = 0; plane < PLANES; plane++) data[(plane * HEIGHT + y) * tensorWidth + x] = value;
    }
  }
  return { x: { datatype: 'FP32', shape: [1, PLANES, HEIGHT, tensorWidth], data } };
}

function picture(bytes) {
  try {
    return readPng(bytes);
  } catch (error) {
    if (error instanceof PngError) throw new ClientError(`the picture ${error.message}`);
    throw error;
  }
}

/** For each of `size` places, which of `sourceSize` values count for it and how much: a triangle, as wide as a place is where there are fewer. */
function weights(sourceSize, size) {
  const scale = sourceSize / size;
  const reach = Math.max(1, scale);
  return Array.from({ length: size }, (_, place) => {
    const centre = (place + 0.5) * scale;
    const first = Math.max(0, Math.floor(centre - reach));
    const last = Math.min(sourceSize, Math.ceil(centre + reach));
    const list = Array.from({ length: last - first }, (_, n) =>
      Math.max(0, 1 - Math.abs(first + n + 0.5 - centre) / reach),
    );
    const sum = list.reduce((total, weight) => total + weight, 0);
    return { first, list: list.map((weight) => weight / sum) };
  });
}

function mixed(values, start, stride, { first, list }) {
  let sum = 0;
  for (let n = 0; n < list.length; n++) sum += values[start + (first + n) * stride] * list[n];
  return sum;
}
