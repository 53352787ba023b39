// A grid of scores as colours over an image, and the bar that says what the colours mean.

const HEAT_PX = 320;
const EVEN = 1e-3; // scores this close to the mean are shown as weak as they are
const STOPS = [[0, 0, 0], [68, 1, 84], [187, 55, 84], [249, 142, 9], [252, 255, 164]];

// From the mean, which is transparent, to the best score: {canvas, low, high}.
export function paintHeat(grid, { width, height }) {
  const scale = HEAT_PX / Math.max(width, height);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const scores = new Float32Array(canvas.width * canvas.height);
  let sum = 0;
  for (let y = 0, at = 0; y < canvas.height; y++) {
    for (let x = 0; x < canvas.width; x++, at++) {
      scores[at] = bilinear(grid, (y + 0.5) / canvas.height, (x + 0.5) / canvas.width);
      sum += scores[at];
    }
  }
  const mean = sum / scores.length;
  const top = scores.reduce((best, score) => Math.max(best, score - mean), EVEN);
  const image = new ImageData(canvas.width, canvas.height);
  for (let at = 0; at < scores.length; at++) {
    const share = Math.max(0, scores[at] - mean) / top;
    image.data.set([...colour(share), 255 * share], 4 * at);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return { canvas, low: mean, high: mean + top };
}

// The bar stands in the lower left corner, with the scores of its ends.
export function drawBar(context, heat, unit) {
  const [wide, high] = [120 * unit, 8 * unit];
  const [x, y] = [14 * unit, context.canvas.height - 30 * unit];
  context.fillStyle = "rgb(0 0 0 / 65%)";
  context.fillRect(x - 8 * unit, y - 20 * unit, wide + 16 * unit, high + 42 * unit);
  const gradient = context.createLinearGradient(x, 0, x + wide, 0);
  STOPS.forEach((stop, at) => gradient.addColorStop(at / (STOPS.length - 1), `rgb(${stop})`));
  context.fillStyle = gradient;
  context.fillRect(x, y, wide, high);
  context.fillStyle = "#e7ebee";
  context.font = `${11.5 * unit}px system-ui, sans-serif`;
  context.fillText(heat.isFound ? "score" : "score, not found", x, y - 7 * unit);
  context.fillText(heat.low.toFixed(2), x, y + high + 14 * unit);
  context.textAlign = "right";
  context.fillText(heat.high.toFixed(2), x + wide, y + high + 14 * unit);
  context.textAlign = "left";
}

function bilinear(grid, down, right) {
  const rows = grid.length, columns = grid[0].length;
  const y = Math.min(Math.max(down * rows - 0.5, 0), rows - 1);
  const x = Math.min(Math.max(right * columns - 0.5, 0), columns - 1);
  const top = Math.floor(y), left = Math.floor(x);
  const below = Math.min(top + 1, rows - 1), beside = Math.min(left + 1, columns - 1);
  const across = (row) => row[left] * (1 - x + left) + row[beside] * (x - left);
  return across(grid[top]) * (1 - y + top) + across(grid[below]) * (y - top);
}

function colour(share) {
  const place = share * (STOPS.length - 1);
  const low = Math.min(Math.floor(place), STOPS.length - 2);
  return STOPS[low].map((value, channel) => value + (STOPS[low + 1][channel] - value) * (place - low));
}
