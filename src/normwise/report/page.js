// Draws every chart of the page. A chart that cannot be drawn says so in its place.
const charts = JSON.parse(document.getElementById("charts").textContent);
const options = { actions: false, renderer: "svg" };
for (const place of document.querySelectorAll("[data-chart]")) {
  vegaEmbed(place, charts[place.dataset.chart], options).catch((error) => {
    place.textContent = `This chart could not be drawn: ${error.message}`;
    console.error(error);
  });
}
