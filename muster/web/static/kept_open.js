// What a reader has opened stays open when the part that it is in refreshes: the server does not know of it.

const { callbacks } = Idiomorph.defaults;
const before = callbacks.beforeAttributeUpdated;
callbacks.beforeAttributeUpdated = (name, element, change) =>
  name === "open" && element.localName === "details" ? false : before(name, element, change);
