"""Presets and recipes, one YAML file each; `training.recipe` reads them."""
