"""The page: everything a person sees. Imports dflash_core; dflash_core never imports it."""
