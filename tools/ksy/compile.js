// Compile .ksy files to Python modules:  node compile.js <directory> <file.ksy>...
const fs = require("fs");
const path = require("path");
const compiler = require("kaitai-struct-compiler");
const yaml = require("yaml");

const [directory, ...sources] = process.argv.slice(2);
fs.mkdirSync(directory, { recursive: true });
for (const source of sources)
  compiler.compile("python", yaml.parse(fs.readFileSync(source, "utf8")), null, false).then((modules) => {
    for (const [name, text] of Object.entries(modules)) fs.writeFileSync(path.join(directory, name), text);
  });
