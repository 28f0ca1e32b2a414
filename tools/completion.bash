# bash completion for the programs of Cariama. The options are those that the program's --help shows.

_cariama() {
  local program=$1 word=$2 previous=$3 words="" i
  local help
  help=$("$program" --help 2>/dev/null) || return 0
  COMPREPLY=()
  # cariama-run: behind the name of the program come that program's arguments.
  if [ "${program##*/}" = cariama-run ]; then
    for ((i = 1; i < COMP_CWORD; i++)); do
      case ${COMP_WORDS[i]} in
        --) break ;;
        -n | -t | --bind | --place | --timeout | --grace) ((i++)) ;;
        -*) ;;
        *) break ;;
      esac
    done
    if [ "$i" -lt "$COMP_CWORD" ]; then
      [ "${COMP_WORDS[i]}" != -- ] || ((i++))
      if [ "$i" -lt "$COMP_CWORD" ]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        return 0
      fi
    fi
  fi
  case $previous in
    --bind)
      words="none core numa"
      [ "${program##*/}" != cariama-hex ] || words="127.0.0.1 ::1 0.0.0.0 ::"
      ;;
    --strategy) words="bfs chaining saturation" ;;
    --placement) words="locality hash random" ;;
    --preset) words="default paper" ;;
    --place)
      mapfile -t COMPREPLY < <(compgen -W zone-endpoint -- "$word"; compgen -f -- "$word")
      return 0
      ;;
    --sgf | --svg | --records | --goal | --checkpoint | --save | --dot)
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return 0
      ;;
    *)
      case $word in
        -*) words=$(grep -oE -e '(^|[ ,[])--?[a-z][a-z0-9-]*' <<<"$help" | tr -d ' ,[' | sort -u) ;;
        *)
          case ${program##*/} in
            cariama-run)
              mapfile -t COMPREPLY < <(compgen -c -- "$word"; compgen -f -- "$word")
              return 0
              ;;
            cariama-bdd)
              words="reach queens dot"
              if [ "$COMP_CWORD" != 1 ]; then
                mapfile -t COMPREPLY < <(compgen -f -- "$word")
                return 0
              fi
              ;;
            cariama-hex) [ "$COMP_CWORD" != 1 ] || words="gtp analyze serve solve match bench" ;;
          esac
          ;;
      esac
      ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o filenames -F _cariama cariama-bdd cariama-hex cariama-info cariama-run cariama-top
