// Light or dark as the system has it, until the button says otherwise; print is always light.
const theme = (() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let chosen = null;
  const set = (name) => {
    root.dataset.theme = name;
    button.textContent = name === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `show the page in ${name === "dark" ? "light" : "dark"} colours`);
  };
  const show = () => set(chosen ?? (system.matches ? "dark" : "light"));
  button.addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  addEventListener("beforeprint", () => set("light"));
  addEventListener("afterprint", show);
  matchMedia("print").addEventListener("change", (event) => event.matches ? set("light") : show());
  show();
})();
