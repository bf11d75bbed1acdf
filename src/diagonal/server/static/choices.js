/** A row of radio buttons, as text or as pictures. */

export class Choices {
  /** `chosen(value)` is called when the user takes another one. */
  constructor(root, chosen) {
    this.root = root;
    root.addEventListener("change", (event) => chosen(event.target.value));
  }

  /** What there is to choose from: value, text and, if there is one, the address of a picture. */
  show(options, value) {
    this.root.replaceChildren(...options.map((option) => this.option(option)));
    this.value = value;
  }

  get value() {
    return this.root.querySelector("input:checked")?.value ?? null;
  }

  set value(value) {
    for (const input of this.root.querySelectorAll("input")) input.checked = input.value === value;
  }

  option({ value, text, picture }) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    Object.assign(input, { type: "radio", name: this.root.id, value, className: "unseen" });
    label.append(input);
    if (picture) {
      const image = document.createElement("img");
      Object.assign(image, { src: picture, alt: "", width: 128, height: 96 });
      label.append(image);
    }
    const name = document.createElement("span");
    name.textContent = text;
    label.append(name);
    return label;
  }
}
